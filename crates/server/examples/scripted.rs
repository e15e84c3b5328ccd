//! The real server with fixed answers in place of a model: for work on the page and for its test in a browser.
//!
//! `cargo run -p onebit-server --example scripted [PORT]`; the last message chooses the answer by a word in it: `tool`,
//! `table`, `steps`, `fail`, `long`. The model `brush` makes pictures.

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/it/brush.rs"]
mod brush;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/it/support.rs"]
mod support;

use onebit_engine::EngineError;
use onebit_server::ServerOptions;
use std::time::Duration;
use support::{Say, Setup, Vocabulary};

const RAIN: &str = "The person asks about rain. I should explain evaporation, condensation and falling drops, and keep it \
    short.\nA list would help; perhaps a line of code as well.\n</think>\n\nRain is **water on its way back**. It takes three steps:\n\n\
    1. *Evaporation* lifts water from seas and leaves.\n2. *Condensation* gathers it on dust: a cloud.\n3. Drops grow \
    until they fall, at about `9 m/s`.\n\n```python\ndef falls(drop_mm: float) -> bool:\n    return drop_mm > 0.5\n```\n\n> Small drops \
    float; large ones do not.\n\nMore at https://example.org/rain.";
const TABLE: &str = "</think>\n\n## Sizes\n\n| Model | Bits | Size |\n|---|---|---|\n| 8B | 1 | 1.2 GB |\n| 27B | 2 | 7.2 GB |\n\nEach \
    weight is a sign, and each group of 128 shares **one** scale. <b>Not bold</b>, since that is markup of another kind.";
const STEPS: &str = "</think>\n\n # Steps\n\n1. **Build** it:\n\n   ```sh\n   make all\n     make check\n   ```\n\n   \
    It takes a while.\n2. Run it:\n   - once\n   - or twice";
const TOOL: &str = "I need the weather; there is a tool for it.\n</think>\n\nLet me look that up.\n<tool_call>\n{\"name\": \"weather\", \
    \"arguments\": {\"city\": \"Köln\", \"days\": 3}}\n</tool_call>";
const RESULT: &str = "</think>\n\nIt stays dry in Köln for three days.";
const LONG: &str = "</think>\n\nOn and on it goes. ";

fn words(text: &str) -> Vec<&[u8]> {
    text.split_inclusive(' ').map(str::as_bytes).collect()
}

fn main() {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(0);
    let all: Vec<&[u8]> = [RAIN, TABLE, STEPS, TOOL, RESULT, LONG].into_iter().flat_map(words).collect();
    let vocabulary = Vocabulary::of(&all);
    let tokenizer = vocabulary.tokenizer();
    let script = |text: &str, times: usize| -> Vec<Say> {
        let once: Vec<Say> = words(text).into_iter().map(|word| Say::Token(vocabulary.id(word))).collect();
        std::iter::repeat_n(once, times).flatten().collect()
    };
    let scripts =
        [script(RAIN, 1), script(TABLE, 1), script(STEPS, 1), script(TOOL, 1), script(RESULT, 1), script(LONG, 60)];
    let plan = move |request: &onebit_engine::Request, _: usize| {
        let prompt = tokenizer.decode(&request.tokens);
        let last = prompt.rsplit("<|im_start|>user").next().unwrap_or_default();
        let [rain, table, steps, tool, result, long] = &scripts;
        match last {
            _ if last.contains("tool_response") => result.clone(),
            _ if last.contains("table") => table.clone(),
            _ if last.contains("steps") => steps.clone(),
            _ if last.contains("long") => long.clone(),
            _ if last.contains("tool") => tool.clone(),
            _ if last.contains("fail") => vec![Say::Fail(EngineError::EmptyPrompt)],
            _ => rain.clone(),
        }
    };
    let setup = Setup {
        chunk: 64,
        pace: Duration::from_millis(25),
        options: ServerOptions { any_model: true, ..ServerOptions::default() },
        others: vec![("second", None), ("broken", Some("its tensor x is stored in a format without a kernel"))],
        pictures: Some(Duration::from_millis(500)),
        ..Setup::default()
    };
    let site = setup.plan_at(port, vocabulary, plan);
    println!("{}", site.base);
    loop {
        std::thread::park();
    }
}
