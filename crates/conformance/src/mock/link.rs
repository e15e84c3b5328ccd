//! The host's end of the wire: commands out, replies in, and buffers that are freed with their last handle.

use super::device::{Binding, Command, Reply, serve};
use onebit_ops::OpError;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Name in reports and errors.
pub(super) const NAME: &str = "device-mock";

/// A started device. The thread ends when the last handle goes.
pub(super) struct Link {
    commands: Mutex<Sender<Command>>,
    inbox: Mutex<Inbox>,
    next: AtomicU64,
}

struct Inbox {
    replies: Receiver<Reply>,
    arrived: HashMap<u64, Result<Vec<u8>, String>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that these locks guard is left half changed by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lost(message: impl Into<String>) -> OpError {
    OpError::Device { backend: NAME.to_owned(), message: message.into() }
}

impl Link {
    /// Starts the device.
    pub(super) fn open() -> Arc<Self> {
        let (commands, received) = channel();
        let (sent, replies) = channel();
        std::thread::spawn(move || serve(&received, &sent));
        let inbox = Mutex::new(Inbox { replies, arrived: HashMap::new() });
        Arc::new(Link { commands: Mutex::new(commands), inbox, next: AtomicU64::new(1) })
    }

    /// A number that no buffer, tag or ticket had before.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends one command.
    pub(super) fn send(&self, command: Command) -> Result<(), OpError> {
        lock(&self.commands).send(command).map_err(|_| lost("it is gone"))
    }

    /// Sends the commands of one step, with none of another between them.
    pub(super) fn submit(&self, commands: Vec<Command>) -> Result<(), OpError> {
        let sender = lock(&self.commands);
        commands.into_iter().try_for_each(|command| sender.send(command).map_err(|_| lost("it is gone")))
    }

    /// The reply with this tag, if it is there.
    pub(super) fn reply(&self, tag: u64) -> Result<Option<Vec<u8>>, OpError> {
        let mut inbox = lock(&self.inbox);
        loop {
            match inbox.replies.try_recv() {
                Ok(reply) => inbox.arrived.insert(reply.tag, reply.result),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) if inbox.arrived.contains_key(&tag) => break,
                Err(TryRecvError::Disconnected) => return Err(lost("it is gone")),
            };
        }
        inbox.arrived.remove(&tag).transpose().map_err(lost)
    }

    /// Reads a range back and waits for it: only for [`onebit_ops::Backend::read_slot`], which tests call.
    pub(super) fn read(&self, range: Binding) -> Result<Vec<u8>, OpError> {
        let tag = self.number();
        self.send(Command::Read { tag, range })?;
        let mut inbox = lock(&self.inbox);
        loop {
            if let Some(result) = inbox.arrived.remove(&tag) {
                return result.map_err(lost);
            }
            match inbox.replies.recv_timeout(Duration::from_secs(60)) {
                Ok(reply) => inbox.arrived.insert(reply.tag, reply.result),
                Err(RecvTimeoutError::Timeout) => return Err(lost("no reply within a minute")),
                Err(RecvTimeoutError::Disconnected) => return Err(lost("it is gone")),
            };
        }
    }

    /// A zeroed buffer.
    pub(super) fn buffer(self: &Arc<Self>, bytes: usize) -> Result<Buffer, OpError> {
        let id = self.number();
        self.send(Command::Create { buffer: id, bytes })?;
        Ok(Buffer { link: self.clone(), id, bytes })
    }

    /// A buffer with these bytes.
    pub(super) fn upload(self: &Arc<Self>, bytes: &[u8]) -> Result<Buffer, OpError> {
        let buffer = self.buffer(bytes.len())?;
        self.send(Command::Write { buffer: buffer.id, start: 0, bytes: bytes.to_vec() })?;
        Ok(buffer)
    }
}

/// A buffer on the device.
pub(super) struct Buffer {
    link: Arc<Link>,
    id: u64,
    bytes: usize,
}

impl Buffer {
    /// Some of its bytes.
    pub(super) fn range(&self, start: usize, len: usize) -> Binding {
        Binding { buffer: self.id, start, len }
    }

    /// All of it.
    pub(super) fn whole(&self) -> Binding {
        self.range(0, self.bytes)
    }

    /// Some of its values, counted as f32.
    pub(super) fn floats(&self, start: usize, len: usize) -> Binding {
        self.range(4 * start, 4 * len)
    }

    /// Whether it lies on this device.
    pub(super) fn is_on(&self, link: &Arc<Link>) -> bool {
        Arc::ptr_eq(&self.link, link)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A device that is gone has freed it already.
        let _ = self.link.send(Command::Free { buffer: self.id });
    }
}
