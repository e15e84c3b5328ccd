//! A thread that owns a source of pictures and makes what is ordered, one picture after the other.

use crate::picture::{Picture, PictureCheck, PictureDefaults, PictureError, PictureOrder, PictureSource, PictureStage};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use tokio::sync::mpsc as events;

/// What happened to an order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PictureEvent {
    /// Its turn has come and this stage has begun, or a step has ended.
    Stage(PictureStage),
    /// It is done; nothing follows.
    Done(Picture),
    /// It will not be done; nothing follows.
    Failed(PictureError),
}

struct Order {
    order: PictureOrder,
    events: events::UnboundedSender<PictureEvent>,
}

/// The thread, seen from outside. It ends when this is gone and its last picture is done or given up.
pub(crate) struct Painter {
    orders: mpsc::Sender<Order>,
    pub(crate) check: PictureCheck,
    pub(crate) defaults: PictureDefaults,
    waiting: Arc<AtomicUsize>,
    thread: std::thread::JoinHandle<()>,
}

/// An order under way. Dropping it takes it out of the queue, or ends it at the next step.
pub(crate) struct PictureJob(events::UnboundedReceiver<PictureEvent>);

impl PictureJob {
    /// What happens next; `None` once the thread has ended.
    pub(crate) async fn next(&mut self) -> Option<PictureEvent> {
        self.0.recv().await
    }
}

impl Painter {
    /// Starts the thread. The source is made on it.
    pub(crate) fn start<S: PictureSource>(
        make: impl FnOnce() -> S + Send + 'static,
        check: PictureCheck,
        defaults: PictureDefaults,
    ) -> std::io::Result<Self> {
        let (orders, inbox) = mpsc::channel::<Order>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&waiting);
        let thread = std::thread::Builder::new().name("pictures".to_owned()).spawn(move || {
            let mut source = make();
            for order in inbox {
                left.fetch_sub(1, Ordering::Relaxed);
                work(&mut source, &order);
            }
        })?;
        Ok(Self { orders, check, defaults, waiting, thread })
    }

    /// Puts an order in the queue.
    ///
    /// # Errors
    /// Why there is no source any more.
    pub(crate) fn submit(&self, order: PictureOrder) -> Result<PictureJob, String> {
        let (events, receiver) = events::unbounded_channel();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.orders.send(Order { order, events }).map_err(|_| ENDED.to_owned())?;
        Ok(PictureJob(receiver))
    }

    /// Orders whose turn has not come.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Why the source can no longer be used, if it cannot.
    pub(crate) fn broken(&self) -> Option<String> {
        self.thread.is_finished().then(|| ENDED.to_owned())
    }

    /// Ends the thread and waits until what it held is free.
    pub(crate) fn end(self) {
        let Self { orders, thread, .. } = self;
        drop(orders);
        // A thread that panicked has freed what it held as well.
        let _ = thread.join();
    }
}

/// The thread ends only when its painter is gone, or by a panic.
pub(crate) const ENDED: &str = "the thread that makes pictures has ended unexpectedly; please report this";

fn work(source: &mut impl PictureSource, Order { order, events }: &Order) {
    if events.is_closed() {
        return;
    }
    let mut told = None;
    let mut watch = |stage| {
        if told.replace(stage) != Some(stage) {
            // Whether somebody still listens is asked below.
            let _ = events.send(PictureEvent::Stage(stage));
        }
        if events.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let end = match source.make(order, &mut watch) {
        Ok(picture) => PictureEvent::Done(picture),
        Err(error) => PictureEvent::Failed(error),
    };
    let _ = events.send(end);
}
