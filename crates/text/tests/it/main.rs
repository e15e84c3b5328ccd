//! The public interface on the tokenizers and templates in `testdata`.

mod chat;
mod constraint;
mod encodings;
mod streams;

use onebit_text::Tokenizer;

/// A file under `testdata`.
fn testdata(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn tokenizer(family: &str) -> Tokenizer {
    Tokenizer::from_json(&testdata(&format!("tokenizer/{family}.tokenizer.json"))).expect("a tokenizer")
}
