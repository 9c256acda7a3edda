//! Cutting the middle out of a long text.

use std::borrow::Cow;

/// The first two thirds and the last third of `limit` bytes of `text`, around a marker that says how
/// much is gone and carries `hint`. The marker comes on top of `limit`; 0 cuts nothing.
///
/// Cuts move outwards to the nearest boundary of a code point, so at most `limit` bytes are kept.
pub fn truncate_middle<'a>(text: &'a str, limit: usize, hint: &str) -> Cow<'a, str> {
    if limit == 0 || text.len() <= limit {
        return Cow::Borrowed(text);
    }
    let tail = limit / 3;
    let head = floor_char_boundary(text, limit - tail);
    let tail = ceil_char_boundary(text, text.len() - tail).max(head);
    let cut = tail - head;
    let total = text.len();
    let gap = if hint.is_empty() { "" } else { " " };
    let head = &text[..head];
    let tail = &text[tail..];
    Cow::Owned(format!(
        "{head}\n[… {cut} of {total} bytes left out here.{gap}{hint}]\n{tail}"
    ))
}

/// The nearest boundary of a code point at or before `at`.
pub fn floor_char_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0)
}

/// The nearest boundary of a code point at or after `at`.
pub fn ceil_char_boundary(text: &str, at: usize) -> usize {
    (at..text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::truncate_middle;

    #[test]
    fn keeps_two_thirds_and_one_third() {
        let text = "a".repeat(50) + &"b".repeat(50);
        let cut = truncate_middle(&text, 30, "");
        assert_eq!(
            cut,
            format!(
                "{}\n[… 70 of 100 bytes left out here.]\n{}",
                "a".repeat(20),
                "b".repeat(10)
            )
        );
    }

    #[test]
    fn never_splits_a_code_point() {
        let text = "日本語テキスト".repeat(20);
        for limit in 1..text.len() {
            let cut = truncate_middle(&text, limit, "More: see {OUTPUT}.");
            let (head, rest) = cut.split_once("\n[… ").expect("a marker");
            let (_, tail) = rest.rsplit_once("]\n").expect("its end");
            assert!(head.len() + tail.len() <= limit);
            assert!(text.starts_with(head) && text.ends_with(tail));
            let gone = text.len() - head.len() - tail.len();
            assert!(rest.starts_with(&format!("{gone} of {} bytes", text.len())));
            assert!(cut.contains("See") || cut.contains("see {OUTPUT}."));
        }
    }

    #[test]
    fn short_text_and_no_limit() {
        for (text, limit) in [("", 1), ("abc", 3), ("abc", 0), ("日本", 6)] {
            assert!(matches!(
                truncate_middle(text, limit, "x"),
                std::borrow::Cow::Borrowed(_)
            ));
        }
    }
}
