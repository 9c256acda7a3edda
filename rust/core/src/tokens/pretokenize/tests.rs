use super::*;

fn pieces(name: &str, text: &str) -> Vec<String> {
    let pre = PreTraits::by_name(name).expect("a known name").pre;
    let mut out = Vec::new();
    pre.for_each_range(text.as_bytes(), |start, end| {
        out.push(text[start..end].to_owned())
    });
    out
}

#[test]
fn known_pieces() {
    let rows: &[(&str, &str, &[&str])] = &[
        (
            "gpt-2",
            "don't  go 12 now",
            &["don", "'t", " ", " go", " 12", " now"],
        ),
        (
            "smollm",
            "ab 12  3\n",
            &["ab", " ", "1", "2", "  ", "3", "\n"],
        ),
        (
            "llama-bpe",
            "DON'T 12345 x\n\n y",
            &["DON", "'T", " ", "123", "45", " x", "\n\n", " y"],
        ),
        (
            "qwen2",
            "(foo)12 \n  \tz",
            &["(foo", ")", "1", "2", " \n", "  ", "\tz"],
        ),
        ("qwen35", "e\u{301}a \u{301}", &["e\u{301}a", " \u{301}"]),
        (
            "gpt-4o",
            "fooBar HTTPServer ÉAB's",
            &["foo", "Bar", " HTTPServer", " É", "AB's"],
        ),
        ("tekken", "fooBAR's/\n", &["foo", "BAR", "'s", "/\n"]),
        (
            "deepseek-v3",
            "a12345@foo 日本go\u{1}\u{2}",
            &["a", "123", "45", "@foo", " ", "日本", "go", "\u{1}\u{2}"],
        ),
        ("superbpe", "x1234567", &["x", "1", "234", "567"]),
        ("afmoe", "ab1234", &["ab", "1", "234"]),
        ("falcon", "a==1234", &["a", "==", "123", "4"]),
        ("gemma4", "a b\n\nc", &["a b", "\n\n", "c"]),
        ("bloom", "ab, cd", &["ab", ",", " cd"]),
        ("kimi-k2", "ab日本's", &["ab", "日本", "'s"]),
        ("exaone-moe", "ab cd 1", &["ab cd", " ", "1"]),
        ("jais-2", "       x", &["    ", "  ", " x"]),
    ];
    for (name, text, want) in rows {
        assert_eq!(pieces(name, text), *want, "{name} {text:?}");
    }
}

pub const NAMES: &[&str] = &[
    "default",
    "afmoe",
    "bloom",
    "chameleon",
    "deepseek-coder",
    "deepseek-llm",
    "deepseek-v3",
    "exaone-moe",
    "falcon",
    "gpt-2",
    "gpt-4o",
    "granite-embed-multi-97m",
    "jais-2",
    "kimi-k2",
    "laguna",
    "llama-bpe",
    "minicpm5",
    "gemma4",
    "qwen2",
    "qwen35",
    "seed-coder",
    "spark2_5",
    "starcoder",
    "superbpe",
    "tekken",
    "tiny_aya",
    "ufakzeka",
    "viking",
    "youtu",
];

#[test]
fn pieces_make_up_the_text() {
    let text = "Don't  STOP éA\u{301}\u{301} 12345 ٣٤٥ <sentinel:1> IMGIMGABZ ~~//\r\n\n\t x\u{3000}日本語、ok한국\u{1}\u{200d}   ";
    for name in NAMES {
        for (end, _) in text.char_indices() {
            assert_eq!(pieces(name, &text[..end]).concat(), text[..end], "{name}");
        }
    }
}

#[test]
fn unknown_names_are_refused() {
    assert!(PreTraits::by_name("llama-bpe2").is_none());
}
