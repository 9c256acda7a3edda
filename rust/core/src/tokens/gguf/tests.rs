use super::*;

/// Writes headers for tests, in either byte order.
pub(crate) struct Writer {
    body: Vec<u8>,
    big: bool,
    keys: u64,
}

impl Writer {
    pub(crate) fn new(big: bool) -> Self {
        Self {
            body: Vec::new(),
            big,
            keys: 0,
        }
    }

    fn put<const N: usize>(&mut self, mut raw: [u8; N]) {
        if self.big {
            raw.reverse();
        }
        self.body.extend(raw);
    }

    fn raw_text(&mut self, text: &[u8]) {
        self.put((text.len() as u64).to_le_bytes());
        self.body.extend(text);
    }

    fn key(&mut self, key: &str, code: u32) {
        self.keys += 1;
        self.raw_text(key.as_bytes());
        self.put(code.to_le_bytes());
    }

    pub(crate) fn text(mut self, key: &str, value: &str) -> Self {
        self.key(key, 8);
        self.raw_text(value.as_bytes());
        self
    }

    pub(crate) fn u32(mut self, key: &str, value: u32) -> Self {
        self.key(key, 4);
        self.put(value.to_le_bytes());
        self
    }

    pub(crate) fn boolean(mut self, key: &str, value: bool) -> Self {
        self.key(key, 7);
        self.put([u8::from(value)]);
        self
    }

    pub(crate) fn f64(mut self, key: &str, value: f64) -> Self {
        self.key(key, 12);
        self.put(value.to_le_bytes());
        self
    }

    pub(crate) fn strings<T: AsRef<[u8]>>(mut self, key: &str, values: &[T]) -> Self {
        self.key(key, 9);
        self.put(8_u32.to_le_bytes());
        self.put((values.len() as u64).to_le_bytes());
        for value in values {
            self.raw_text(value.as_ref());
        }
        self
    }

    pub(crate) fn i32s(mut self, key: &str, values: &[i32]) -> Self {
        self.key(key, 9);
        self.put(5_u32.to_le_bytes());
        self.put((values.len() as u64).to_le_bytes());
        for value in values {
            self.put(value.to_le_bytes());
        }
        self
    }

    pub(crate) fn f32s(mut self, key: &str, values: &[f32]) -> Self {
        self.key(key, 9);
        self.put(6_u32.to_le_bytes());
        self.put((values.len() as u64).to_le_bytes());
        for value in values {
            self.put(value.to_le_bytes());
        }
        self
    }

    /// The file, with one tensor description behind the keys.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let body = std::mem::take(&mut self.body);
        self.body.extend(b"GGUF");
        self.put(3_u32.to_le_bytes());
        self.put(1_u64.to_le_bytes());
        self.put(self.keys.to_le_bytes());
        self.body.extend(body);
        self.raw_text(b"token_embd.weight");
        self.put(2_u32.to_le_bytes());
        self.put(64_u64.to_le_bytes());
        self.put(3_u64.to_le_bytes());
        self.put(0_u32.to_le_bytes());
        self.put(0_u64.to_le_bytes());
        self.body
    }
}

fn sample(big: bool) -> Vec<u8> {
    Writer::new(big)
        .text("general.architecture", "llama")
        .u32("llama.context_length", 8192)
        .boolean("tokenizer.ggml.add_bos_token", true)
        .f64("x.double", -0.5)
        .strings("tokenizer.ggml.tokens", &["a", "", "日本"])
        .i32s("tokenizer.ggml.token_type", &[1, -3, 6])
        .f32s("tokenizer.ggml.scores", &[0.0, -1.5, 2.0])
        .finish()
}

#[test]
fn reads_both_byte_orders() {
    for big in [false, true] {
        let header = Header::read(&sample(big)[..]).expect("a good header");
        assert_eq!(header.version, 3);
        assert_eq!(header.big_endian, big);
        assert_eq!(header.keys().len(), 7);
        assert_eq!(
            header.text("general.architecture").expect("text"),
            Some("llama".into())
        );
        assert_eq!(
            header.integer("llama.context_length").expect("number"),
            Some(8192)
        );
        assert_eq!(
            header
                .boolean("tokenizer.ggml.add_bos_token")
                .expect("bool"),
            Some(true)
        );
        assert_eq!(header.get("x.double"), Some(Value::Float(-0.5)));
        assert_eq!(header.get("absent"), None);
        let tokens = header
            .string_array("tokenizer.ggml.tokens")
            .expect("array")
            .expect("there");
        assert_eq!(
            tokens.strings().collect::<Vec<_>>(),
            ["a", "", "日本"].map(str::as_bytes)
        );
        let types = header
            .array("tokenizer.ggml.token_type")
            .expect("array")
            .expect("there");
        assert_eq!(types.get(1), Some(Value::Signed(-3)));
        assert_eq!(types.get(3), None);
        let scores = header
            .array("tokenizer.ggml.scores")
            .expect("array")
            .expect("there");
        assert_eq!(scores.iter().last(), Some(Value::Float(2.0)));
        assert!(header.text("llama.context_length").is_err());
        assert!(header.integer("general.architecture").is_err());
        assert!(header.string_array("tokenizer.ggml.scores").is_err());
    }
}

#[test]
fn weights_are_not_read() {
    struct Endless<'a>(&'a [u8], usize);
    impl Read for Endless<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let from = self.0.get(self.1..).unwrap_or(&[]);
            let len = from.len().min(out.len());
            out[..len].copy_from_slice(&from[..len]);
            out[len..].fill(7);
            self.1 += out.len();
            Ok(out.len())
        }
    }
    let bytes = sample(false);
    let mut input = Endless(&bytes, 0);
    let header = Header::read(&mut input).expect("a good header");
    assert_eq!(header.byte_len, bytes.len());
    assert!(input.1 <= 2 * FIRST_READ, "read {} bytes", input.1);
}

#[test]
fn cut_at_every_offset() {
    for big in [false, true] {
        let bytes = sample(big);
        for end in 0..bytes.len() {
            match Header::read(&bytes[..end]) {
                Err(GgufError::Damaged { message, .. }) => {
                    assert!(
                        message.contains(&format!("after {end} bytes")),
                        "{end}: {message}"
                    );
                }
                _ => panic!("cut at {end} was taken"),
            }
        }
    }
}

#[test]
fn absurd_files() {
    let good = sample(false);
    let with = |at: usize, raw: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + raw.len()].copy_from_slice(raw);
        bytes
    };
    let huge = u64::MAX.to_le_bytes();
    let large = (1_u64 << 40).to_le_bytes();
    let twice = Writer::new(false).u32("k", 1).u32("k", 1).finish();
    let key_at = 24;
    let value_at = key_at + 8 + "general.architecture".len();
    for (name, bytes, want) in [
        ("magic", with(0, b"GGML"), "begin with GGUF"),
        ("version 1", with(4, &1_u32.to_le_bytes()), "version is 1"),
        ("version 4", with(4, &4_u32.to_le_bytes()), "version is 4"),
        ("version 0", with(4, &0_u32.to_le_bytes()), "version is 0"),
        ("tensors", with(8, &huge), "ends after"),
        ("keys", with(16, &huge), "keys"),
        ("key length", with(key_at, &huge), "claims a string"),
        (
            "key length beyond the limit",
            with(key_at, &large),
            "claims a string",
        ),
        (
            "type",
            with(value_at, &99_u32.to_le_bytes()),
            "unknown type 99",
        ),
        (
            "value length",
            with(value_at + 4, &(200_u64 << 20).to_le_bytes()),
            "ends after",
        ),
        ("key not UTF-8", with(key_at + 8, &[0xff]), "not UTF-8"),
        ("duplicate", twice, "there twice"),
        ("empty", Vec::new(), "ends after 0 bytes"),
    ] {
        match Header::read(&bytes[..]) {
            Err(error) => assert!(error.to_string().contains(want), "{name}: {error}"),
            Ok(_) => panic!("{name} was taken"),
        }
    }
}

#[test]
fn claimed_counts_make_no_room() {
    // An array of strings that claims as many elements as the limit allows, in a file of 80 bytes.
    let mut writer = Writer::new(false);
    writer.key("k", 9);
    writer.put(8_u32.to_le_bytes());
    writer.put((HEADER_LIMIT as u64).to_le_bytes());
    assert!(Header::read(&writer.finish()[..]).is_err());
}
