#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| agentkit_fuzz::slots(data));
