//! The names of pre-tokenizers, and what goes with each.

use super::Pre;

/// What llama.cpp derives from the name alone, where the file does not say otherwise.
#[derive(Clone, Copy, Debug)]
pub struct PreTraits {
    pub pre: Pre,
    /// A word that is a token is that token, whatever the merges say.
    pub ignore_merges: bool,
    pub add_bos: bool,
    /// Blanks are written as U+2581, and text is not byte-encoded.
    pub escape_whitespace: bool,
}

impl PreTraits {
    /// By the value of `tokenizer.ggml.pre`; `None` for a name that is not known.
    pub fn by_name(name: &str) -> Option<Self> {
        use Pre as P;
        let pre = match name {
            "" | "default" => P::Default,
            "afmoe" => P::Afmoe,
            "bailingmoe" | "bailingmoe2" | "llada-moe" => P::Qwen2,
            "bloom" | "gpt3-finnish" | "poro-chat" => P::Bloom,
            "chameleon" => P::Chameleon,
            "chatglm-bpe" | "glm4" | "glm5" | "dbrx" | "smaug-bpe" => P::Llama3,
            "deepseek-coder" => P::DeepseekCoder,
            "deepseek-llm" => P::DeepseekLlm,
            "deepseek-v3" | "hunyuan-dense" | "hy_v4" | "joyai-llm" => P::Deepseek3,
            "exaone-moe" => P::ExaoneMoe,
            "falcon" => P::Falcon,
            "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es"
            | "jina-v2-de" | "a.x-4.0" | "mellum" | "modern-bert" | "jina-v1-en"
            | "jina-v2-code" | "roberta-bpe" | "mpt" | "olmo" | "jais" | "trillion"
            | "granite-docling" | "exaone4" => P::Gpt2,
            "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => P::Gpt4o,
            "granite-embed-multi-97m" => P::GraniteEmbed,
            "jais-2" => P::Jais2,
            "kimi-k2" => P::KimiK2,
            "laguna" => P::Laguna,
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral"
            | "midm-2.0" | "lfm2" | "jina-v5-nano" => P::Llama3,
            "minicpm5" => P::Minicpm5,
            "gemma4" | "granite-embed-multi-311m" | "sarvam-moe" => P::Newlines,
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "stablelm2" | "hunyuan"
            | "solar-open" | "megrez" | "grok-2" => P::Qwen2,
            "qwen35" => P::Qwen35,
            "seed-coder" => P::SeedCoder,
            "spark2_5" => P::Spark25,
            "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone"
            | "minerva-7b" | "mellum2" => P::Starcoder,
            "superbpe" => P::Superbpe,
            "tekken" => P::Tekken,
            "tiny_aya" | "cohere2moe" => P::TinyAya,
            "ufakzeka" => P::Ufakzeka,
            "viking" => P::Viking,
            "youtu" => P::Youtu,
            _ => return None,
        };
        let llama3 = matches!(
            name,
            "llama3"
                | "llama-v3"
                | "llama-bpe"
                | "falcon3"
                | "falcon-h1"
                | "pixtral"
                | "midm-2.0"
                | "lfm2"
                | "jina-v5-nano"
        );
        Some(Self {
            pre,
            ignore_merges: llama3
                || matches!(
                    name,
                    "minicpm5" | "youtu" | "glm4" | "glm5" | "tekken" | "granite-embed-multi-97m"
                ),
            add_bos: llama3 || matches!(name, "tekken" | "chameleon"),
            escape_whitespace: pre == P::Newlines,
        })
    }
}
