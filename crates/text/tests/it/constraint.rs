//! Answers of a prescribed form: what is allowed at each token, and what is refused before the first.

use crate::tokenizer;
use onebit_text::{ConstraintFactory, Grammar, Specials, TokenConstraint, Tokenizer};
use std::sync::OnceLock;

/// More rows than tokens, as models have.
const ROWS: usize = 160_000;

fn shared() -> &'static (Tokenizer, ConstraintFactory) {
    static SHARED: OnceLock<(Tokenizer, ConstraintFactory)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let tokenizer = tokenizer("qwen3");
        let factory = ConstraintFactory::new(&tokenizer, ROWS).expect("a good vocabulary");
        (tokenizer, factory)
    })
}

fn compile(grammar: &Grammar) -> TokenConstraint {
    shared().1.compile(grammar).expect("a good grammar")
}

fn allows(constraint: &mut TokenConstraint, token: u32) -> bool {
    let mask = constraint.mask().expect("a mask");
    assert_eq!(mask.len(), ROWS.div_ceil(32));
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}

/// How many bytes of the text are allowed, and whether the answer may end there.
fn follow(constraint: &mut TokenConstraint, text: &str, specials: Specials) -> (usize, bool) {
    let tokenizer = &shared().0;
    let mut done = 0;
    for token in tokenizer.encode(text, specials).expect("text") {
        if !allows(constraint, token) {
            break;
        }
        constraint.accept(token).expect("an allowed token");
        done += tokenizer.token_bytes(token).len();
    }
    (done, constraint.is_complete())
}

fn check(grammar: &Grammar, good: &[&str], bad: &[&str]) {
    for text in good {
        assert_eq!(follow(&mut compile(grammar), text, Specials::Literal), (text.len(), true), "{text}");
    }
    for text in bad {
        let (done, complete) = follow(&mut compile(grammar), text, Specials::Literal);
        assert!(done < text.len() || !complete, "{text}");
    }
}

#[test]
fn json_of_a_schema() {
    let schema = r#"{
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "days"], "additionalProperties": false
    }"#;
    let good = [r#"{"city": "Köln 🙂", "days": 12}"#, r#"{"city":"a","days":1,"unit":"F"}"#];
    let bad = [
        "{\n  \"city\": \"a\",\n  \"days\": 1\n}",
        r#"{"city" : "a", "days": 1}"#,
        r#"{"days": 12}"#,
        r#"{"city": 1, "days": 1}"#,
        r#"{"city": "a", "days": 0}"#,
        r#"{"city": "a", "days": 1, "x": 2}"#,
        r#"{"city": "a", "days": 1"#,
        "hello",
    ];
    check(&Grammar::JsonSchema(schema.to_owned()), &good, &bad);
    check(&Grammar::JsonObject, &["{}", r#"{"a": [1, {"b": null}]}"#], &["[]", "1", r#"{"a": }"#, "{} {}"]);
}

#[test]
fn a_regular_expression_is_matched_in_whole() {
    let grammar = Grammar::Regex(r"(yes|no|perhaps)( [0-9]{2})?".to_owned());
    check(&grammar, &["yes", "no 42", "perhaps"], &["yes 1", "maybe", "yes 123", ""]);
    // With nothing left to say the mask is empty, and the answer is complete.
    let mut done = compile(&Grammar::Regex("yes".to_owned()));
    assert_eq!(follow(&mut done, "yes", Specials::Literal), (3, true));
    assert!(done.mask().expect("a mask").iter().all(|word| *word == 0));
}

#[test]
fn a_grammar_with_special_tokens_and_json_inside() {
    let grammar = r#"start: <tool_call> "\n" call "\n" </tool_call>
        call: %json {"type": "object", "properties": {"name": {"const": "f"}}, "required": ["name"], "additionalProperties": false}"#;
    let grammar = Grammar::Lark(grammar.to_owned());
    let call = "<tool_call>\n{\"name\": \"f\"}\n</tool_call>";
    assert_eq!(follow(&mut compile(&grammar), call, Specials::Parse), (call.len(), true));
    // Letters that look like the token are not the token.
    assert_eq!(follow(&mut compile(&grammar), call, Specials::Literal), (0, false));
    let wrong = "<tool_call>\n{\"name\": \"g\"}\n</tool_call>";
    assert!(follow(&mut compile(&grammar), wrong, Specials::Parse).0 < wrong.len());
}

#[test]
fn control_tokens_and_rows_without_a_token_are_never_allowed() {
    let (tokenizer, _) = shared();
    let mut any = compile(&Grammar::Regex("(?s:.*)".to_owned()));
    assert!(any.is_complete());
    for special in ["<|im_end|>", "<|endoftext|>", "<think>", "<tool_call>"] {
        assert!(!allows(&mut any, tokenizer.id_of(special).expect(special)), "{special}");
    }
    assert!(
        (tokenizer.vocab_size() as u32..ROWS as u32).all(|t| !allows(&mut any, t)) || ROWS < tokenizer.vocab_size()
    );
    assert!(allows(&mut any, tokenizer.encode("hello", Specials::Literal).expect("text")[0]));
}

#[test]
fn white_space_in_json_comes_to_an_end() {
    let mut object = compile(&Grammar::JsonObject);
    let space = "{".to_owned() + &" ".repeat(200);
    assert!(follow(&mut object, &space, Specials::Literal).0 < 100);
}

#[test]
fn answers_to_one_prompt_go_their_own_ways() {
    let mut one = compile(&Grammar::Regex("(ab|ac)d".to_owned()));
    follow(&mut one, "a", Specials::Literal);
    let mut other = one.fork();
    assert_eq!(follow(&mut one, "bd", Specials::Literal), (2, true));
    assert_eq!(follow(&mut other, "cd", Specials::Literal), (2, true));
}

#[test]
fn what_cannot_be_kept_is_refused_before_the_first_token() {
    let (_, factory) = shared();
    let refusals = [
        (Grammar::JsonSchema("{".to_owned()), "the JSON schema cannot be kept"),
        (Grammar::JsonSchema(r#"{"type": "nonsense"}"#.to_owned()), "nonsense"),
        (
            Grammar::JsonSchema(r#"{"type": "object", "unevaluatedProperties": false}"#.to_owned()),
            "unevaluatedProperties",
        ),
        (Grammar::JsonSchema(r#"{"$ref": "http://example.com/schema.json"}"#.to_owned()), "the JSON schema"),
        (Grammar::Regex("(".to_owned()), "the regular expression cannot be kept"),
        (Grammar::Regex("(?=a)b".to_owned()), "the regular expression cannot be kept"),
        (Grammar::Lark("start: missing".to_owned()), "the grammar cannot be kept"),
        (Grammar::Lark("start: <no_such_token>".to_owned()), "the grammar cannot be kept"),
    ];
    for (grammar, words) in refusals {
        let error = factory.compile(&grammar).expect_err(words).to_string();
        assert!(error.contains(words) && error.len() < 900, "{error}");
    }
}
