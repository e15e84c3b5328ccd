//! `onebit chat`: a conversation. The model reads only what is new: the engine keeps the cache of the turn before.
//!
//! | file | idea |
//! |---|---|
//! | `order` | the commands that begin with `/` |
//! | `conversation` | messages, saved and loaded |
//! | `input` | lines, longer texts, history |

mod conversation;
mod input;
mod order;

use crate::answer::{self, Answer, Ask, Sink};
use crate::args::{ChatArgs, Think};
use crate::commands::run::Stream;
use crate::session::{Session, Wishes};
use crate::terminal::{self, DIM, say};
use crate::{prompt, sampling};
use anyhow::{Context, Result};
use conversation::Conversation;
use input::{Input, Typed};
use onebit_engine::{FinishReason, TextEvent};
use order::Order;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Saved states of recurrent models: before the answer under way, and one turn back.
const CHECKPOINTS: usize = 2;

/// A chat under way.
struct Chat<'a> {
    args: &'a ChatArgs,
    session: Session,
    conversation: Conversation,
    think: Option<Think>,
    last: Option<Answer>,
    interrupted: Arc<AtomicBool>,
}

/// Whether the chat goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Line,
    Leave,
}

/// Runs the command.
///
/// # Errors
/// A model that does not run, a conversation that cannot be loaded, output that cannot be written.
pub fn run(args: &ChatArgs) -> Result<()> {
    let mut conversation = match &args.load {
        Some(path) => Conversation::load(path)?,
        None => Conversation::default(),
    };
    if let Some(system) = args.generate.system() {
        conversation.system = Some(system);
    }
    let wishes = Wishes { checkpoints: CHECKPOINTS, quiet: false };
    let session = Session::open(args.model.name().as_deref(), &args.run, wishes)?;
    // Wrong values are found before the first line is typed.
    sampling::merge(&args.generate, &session.text.defaults)?;
    let think = args.generate.think(session.text.think_markers().is_some())?;
    prompt::chat(&session.text, &conversation.with("test"), &[], think)?;

    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::SeqCst)).context("the handler of Ctrl-C")?;
    let mut chat = Chat { args, session, conversation, think, last: None, interrupted };
    let mut input = Input::new(!args.no_history)?;
    if std::io::stdin().is_terminal() {
        chat.greet();
    }
    loop {
        let typed = input.read()?;
        // A Ctrl-C that came between two answers has nothing to stop.
        chat.interrupted.store(false, Ordering::SeqCst);
        let next = match typed {
            Typed::Text(text) if text.trim().is_empty() => Next::Line,
            Typed::Text(text) => match Order::parse(&text) {
                Some(order) => chat.obey(order)?,
                None => chat.turn(text).map(|()| Next::Line)?,
            },
            Typed::Cancelled => {
                say("(Ctrl-D or /quit leaves)");
                Next::Line
            }
            Typed::End => Next::Leave,
        };
        if next == Next::Leave {
            input.save();
            return Ok(());
        }
    }
}

impl Chat<'_> {
    fn greet(&self) {
        let context = terminal::count(self.session.plan.context as u64);
        let seconds = terminal::seconds(self.session.load_time);
        let line = format!(
            "{} on {}, context {context} tokens, loaded in {seconds}. /help lists the commands.",
            self.session.name, self.session.device
        );
        say(&terminal::styled(&line, DIM, terminal::stderr_colours()));
    }

    /// Asks and answers. A fault of this turn is said, and the chat goes on without it.
    fn turn(&mut self, text: String) -> Result<()> {
        self.conversation.say(text);
        match self.answer() {
            Ok(answer) => {
                let completion = &answer.completion;
                self.conversation.answer(completion.answer.clone(), completion.reasoning.clone());
                if completion.reason == FinishReason::Cancelled {
                    say("(stopped)");
                }
                if matches!(completion.reason, FinishReason::ContextFull) {
                    say("note: the context is full; /clear begins anew, and --ctx sets a larger one");
                }
                if let Some(advice) = answer.advice() {
                    say(&format!("note: {advice}"));
                }
                self.last = Some(answer);
                Ok(())
            }
            Err(error) if is_output(&error) => Err(error),
            Err(error) => {
                self.conversation.take_back();
                say(&format!("error: {error:#}"));
                say("(your message was taken back; /clear begins anew)");
                Ok(())
            }
        }
    }

    fn answer(&mut self) -> Result<Answer> {
        let generate = &self.args.generate;
        let params = sampling::merge(generate, &self.session.text.defaults)?;
        let prepared = prompt::chat(&self.session.text, &self.conversation.messages(), &[], self.think)?;
        let ask = Ask {
            sampling: &params,
            max_tokens: generate.max_tokens,
            stop: &generate.stop,
            cache: true,
            patience: answer::PATIENCE,
        };
        let mut sink = Stoppable { stream: Stream::new(false), interrupted: Arc::clone(&self.interrupted) };
        let answer = answer::ask(&mut self.session, prepared, &ask, &mut sink)?;
        sink.stream.end()?;
        Ok(answer)
    }

    fn obey(&mut self, order: Order) -> Result<Next> {
        match order {
            Order::Help => say(&order::help()),
            Order::Clear => {
                self.conversation.clear();
                self.session.engine.forget();
                say("(a new conversation)");
            }
            Order::System(None) => match &self.conversation.system {
                Some(system) => say(system),
                None => say("(there is no system message; /system TEXT sets one)"),
            },
            Order::System(Some(text)) => {
                self.conversation.system = Some(text).filter(|t| t != "none");
                say("(the system message counts from the next answer on)");
            }
            Order::Think(think) => {
                match prompt::chat(&self.session.text, &self.conversation.with("test"), &[], think) {
                    Ok(_) => {
                        self.think = think;
                        say("(it counts from the next answer on)");
                    }
                    Err(error) => say(&format!("error: {error:#}")),
                }
            }
            Order::Retry => match self.conversation.take_back() {
                Some(text) => self.turn(text)?,
                None => say("(there is nothing to answer again)"),
            },
            Order::Undo => match self.conversation.take_back() {
                Some(_) => say("(your last message and its answer were taken back)"),
                None => say("(there is nothing to take back)"),
            },
            Order::Save(path) => self.tell(self.conversation.save(Path::new(&path), &self.session.name), "saved"),
            Order::Load(path) => match Conversation::load(Path::new(&path)) {
                Ok(loaded) => {
                    self.conversation = loaded;
                    say(&format!("(loaded {} messages)", self.conversation.len()));
                }
                Err(error) => say(&format!("error: {error:#}")),
            },
            Order::Stats => self.stats(),
            Order::Quit => return Ok(Next::Leave),
            Order::Unknown(name) => say(&format!("/{name} is no command; /help lists them")),
            Order::Wrong(why) => say(&format!("error: {why}")),
        }
        Ok(Next::Line)
    }

    fn tell(&self, done: Result<()>, what: &str) {
        match done {
            Ok(()) => say(&format!("({what})")),
            Err(error) => say(&format!("error: {error:#}")),
        }
    }

    fn stats(&self) {
        let plan = &self.session.plan;
        say(&format!(
            "{} of memory: {} weights, {} keys and values, {} state; context {} tokens",
            terminal::bytes(plan.total()),
            terminal::bytes(plan.weights),
            terminal::bytes(plan.kv),
            terminal::bytes(plan.state),
            terminal::count(plan.context as u64)
        ));
        match &self.last {
            Some(answer) => say(&format!("last answer: {}", answer.summary())),
            None => say("nothing was answered yet"),
        }
    }
}

/// Whether the fault is that our own output cannot be written.
fn is_output(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some()
}

/// A stream that Ctrl-C ends.
struct Stoppable {
    stream: Stream,
    interrupted: Arc<AtomicBool>,
}

impl Sink for Stoppable {
    fn piece(&mut self, event: &TextEvent) -> ControlFlow<()> {
        if self.interrupted.load(Ordering::SeqCst) {
            return ControlFlow::Break(());
        }
        self.stream.piece(event)
    }

    fn long_wait(&mut self) {
        self.stream.long_wait();
    }
}
