//! Decoding token by token.

use onebit_text::{Specials, TextStream};

use crate::tokenizer;

#[test]
fn tokens_one_by_one_equal_the_text() {
    let tokenizer = tokenizer("qwen35");
    for text in ["🙂👩‍👩‍👧 e\u{301}", "你好，世界！", "plain\n\ntext  ", "हिन्दी"] {
        let ids = tokenizer.encode(text, Specials::Literal).expect("ids");
        let mut stream = TextStream::new();
        let mut out = String::new();
        for id in ids {
            let piece = stream.push(&tokenizer, id);
            assert!(!piece.contains('\u{fffd}'), "{text}");
            out.push_str(&piece);
        }
        out.push_str(&stream.finish());
        // The tokenizer composes letters and marks before it encodes.
        assert_eq!(out, text.replace("e\u{301}", "é"));
    }
}

#[test]
fn control_tokens_give_no_text() {
    let tokenizer = tokenizer("qwen35");
    let mut stream = TextStream::new();
    let ids = tokenizer.encode("<think>a<|im_end|>", Specials::Parse).expect("ids");
    let out: String = ids.into_iter().map(|id| stream.push(&tokenizer, id)).collect();
    assert_eq!(out, "<think>a");
}

#[test]
fn end_of_answer_within_a_character() {
    let tokenizer = tokenizer("qwen35");
    let ids = tokenizer.encode("a🙂", Specials::Literal).expect("ids");
    let mut stream = TextStream::new();
    let mut out: String = ids[..ids.len() - 1].iter().map(|&id| stream.push(&tokenizer, id)).collect();
    out.push_str(&stream.finish());
    assert_eq!(out, "a\u{fffd}");
}
