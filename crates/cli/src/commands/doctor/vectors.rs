//! Token ids and logits that published packs are known to give. They were printed by other programs (an MLX fork for the
//! MLX pack, llama.cpp for the GGUF files) and are compared with f32 activations.

use super::Findings;
use crate::args::{ActivationsName, DoctorArgs, RunOptions, Think};
use crate::resolve::Located;
use crate::session::{Session, Wishes};
use crate::side::TextSide;
use crate::source::Source;
use crate::{backends, prompt};
use anyhow::Result;
use onebit_checkpoint::Container;
use onebit_engine::{Event, PromptOutputs, Request, SamplingParams};
use onebit_hub::packs::{Alphabet, Pack};
use onebit_text::{Message, Specials};
use std::ops::ControlFlow;

/// A raw prompt: its ids, the three likeliest next ids with their logits, and the greedy continuation.
struct Raw {
    text: &'static str,
    ids: &'static [u32],
    best: [(u32, f32); 3],
    greedy: [u32; 6],
}

/// Bonsai-1.7B-mlx-1bit.
const RAW: [Raw; 4] = [
    Raw {
        text: "The capital of France is",
        ids: &[785, 6722, 315, 9625, 374],
        best: [(12095, 18.39), (892, 13.96), (279, 12.88)],
        greedy: [12095, 11, 323, 279, 6722, 315],
    },
    Raw {
        text: "The opposite of hot is",
        ids: &[785, 14002, 315, 4017, 374],
        best: [(9255, 16.53), (7010, 13.10), (1128, 12.59)],
        greedy: [9255, 13, 576, 14002, 315, 9255],
    },
    Raw {
        text: "Water is made of hydrogen and",
        ids: &[28253, 374, 1865, 315, 34684, 323],
        best: [(23552, 20.52), (12499, 14.37), (96507, 14.21)],
        greedy: [23552, 11, 323, 279, 11483, 14806],
    },
    Raw {
        text: "The quick brown fox jumps over the lazy",
        ids: &[785, 3974, 13876, 38835, 34208, 916, 279, 15678],
        best: [(5562, 15.61), (14796, 14.23), (59881, 13.21)],
        greedy: [5562, 13, 576, 3974, 13876, 38835],
    },
];

/// Question of the chat vectors, its prompt for the Qwen3 sizes, and how the GGUF files answer it greedily.
const QUESTION: &str = "What is the capital of France?";
const QUESTION_IDS: [u32; 15] =
    [151_644, 872, 198, 3838, 374, 279, 6722, 315, 9625, 30, 151_645, 198, 151_644, 77_091, 198];
const CHAT: [(&str, &[u32]); 2] = [
    ("bonsai-1.7b", &[151_667, 198, 151_668, 271, 785, 6722, 315, 9625, 374, 12095, 13, 1084]),
    ("bonsai-8b", &[59604, 198, 151_668, 271, 785, 6722, 315, 9625, 374, 12095, 13]),
];

/// "Hello" without thinking, for the 27B.
const HELLO_27B: [u32; 13] = [248_045, 846, 198, 9419, 248_046, 198, 248_045, 74_455, 198, 248_068, 271, 248_069, 271];

/// Room for rounding: the recorded logits come from half-precision arithmetic.
const LOGIT_ROOM: f32 = 0.35;

/// Runs the vectors that belong to this pack and container.
pub(super) fn check(
    located: &Located,
    source: &Source,
    pack: &Pack,
    args: &DoctorArgs,
    findings: &mut Findings,
) -> Result<()> {
    findings.heading("Known answers");
    let gguf = source.checkpoint().container() == Container::Gguf;
    let side = match TextSide::read(source) {
        Ok(side) => side,
        Err(error) => {
            findings.fail(format!("{error:#}"));
            return Ok(());
        }
    };
    if pack.arch == "qwen35" {
        hello(&side, findings);
        findings.skip("no logits are known for this pack");
        return Ok(());
    }
    question(&side, findings);
    let known =
        CHAT.iter().find(|(short, _)| *short == pack.short).filter(|_| gguf && pack.alphabet == Alphabet::Binary);
    let raw = pack.short == "bonsai-1.7b" && !gguf;
    if !raw && known.is_none() {
        findings.skip("no logits are known for this pack");
        return Ok(());
    }
    let run = RunOptions { activations: ActivationsName::F32, ctx: args.run.ctx.or(Some(256)), ..args.run.clone() };
    let wishes = Wishes { checkpoints: 0, quiet: true };
    let mut session = match Session::start(backends::open(&run, true)?, located.clone(), &run, wishes) {
        Ok(session) => session,
        Err(error) => {
            findings.skip(format!("known answers: {error:#}"));
            return Ok(());
        }
    };
    if raw {
        RAW.iter().try_for_each(|vector| raw_prompt(&mut session, vector, findings))?;
    }
    if let Some((_, wanted)) = known {
        let got = greedy(&mut session, &QUESTION_IDS, wanted.len())?;
        findings.check(got == *wanted, "greedy answer to the question", format!("{got:?}, known is {wanted:?}"));
    }
    Ok(())
}

fn question(side: &TextSide, findings: &mut Findings) {
    let messages = [Message::user(QUESTION)];
    match prompt::chat(side, &messages, &[], None) {
        Ok(prepared) => findings.check(
            prepared.tokens == QUESTION_IDS,
            "prompt of a question",
            format!("{:?}, known is {QUESTION_IDS:?}", prepared.tokens),
        ),
        Err(error) => findings.fail(format!("prompt of a question: {error:#}")),
    }
}

fn hello(side: &TextSide, findings: &mut Findings) {
    match prompt::chat(side, &[Message::user("Hello")], &[], Some(Think::Off)) {
        Ok(prepared) => findings.check(
            prepared.tokens == HELLO_27B,
            "prompt of `Hello` without thinking",
            format!("{:?}, known is {HELLO_27B:?}", prepared.tokens),
        ),
        Err(error) => findings.fail(format!("prompt of `Hello`: {error:#}")),
    }
}

fn raw_prompt(session: &mut Session, vector: &Raw, findings: &mut Findings) -> Result<()> {
    let ids = session.text.tokenizer.encode(vector.text, Specials::Literal)?;
    let text = vector.text;
    findings.check(ids == vector.ids, &format!("ids of `{text}`"), format!("{ids:?}, known is {:?}", vector.ids));
    let mut last = Vec::new();
    session.engine.read_prompt(vector.ids, &PromptOutputs::default(), |mut chunk| {
        let logits = chunk.values.remove("logits").unwrap_or_default();
        last = logits[logits.len() / chunk.rows.max(1) * (chunk.rows - 1)..].to_vec();
        ControlFlow::Continue(())
    })?;
    let mut order: Vec<usize> = (0..last.len()).collect();
    order.sort_unstable_by(|a, b| last[*b].total_cmp(&last[*a]).then(a.cmp(b)));
    let best: Vec<String> = order.iter().take(3).map(|&id| format!("{id} ({:.2})", last[id])).collect();
    let close =
        vector.best.iter().all(|&(id, logit)| last.get(id as usize).is_some_and(|l| (l - logit).abs() <= LOGIT_ROOM));
    let right = close && order.first() == Some(&(vector.best[0].0 as usize));
    let known: Vec<String> = vector.best.iter().map(|(id, logit)| format!("{id} ({logit:.2})")).collect();
    findings.check(
        right,
        &format!("logits after `{text}`"),
        format!("{}, known is {}", best.join(" "), known.join(" ")),
    );
    let got = greedy(session, vector.ids, vector.greedy.len())?;
    findings.check(
        got == vector.greedy,
        &format!("greedy text after `{text}`"),
        format!("{got:?}, known is {:?}", vector.greedy),
    );
    Ok(())
}

fn greedy(session: &mut Session, prompt: &[u32], tokens: usize) -> Result<Vec<u32>> {
    let request =
        Request { sampling: SamplingParams::greedy(), max_tokens: Some(tokens), ..Request::new(prompt.to_vec()) };
    let mut ids = Vec::new();
    session.engine.generate(request, |event| {
        if let Event::Token { token, .. } = event {
            ids.push(*token);
        }
        ControlFlow::Continue(())
    })?;
    Ok(ids)
}
