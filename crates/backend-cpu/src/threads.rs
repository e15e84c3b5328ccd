//! Fork-join over threads that stay hot between the phases of a step.
//!
//! A token of a small model is some hundred phases of a few microseconds, so a phase must cost far less than a system
//! call. Workers therefore watch one word for a while before they sleep; a phase opens by storing an odd number there
//! and closes by storing the next even one. Tasks are taken from a counter, so a worker that the system has put aside
//! holds nobody up: a phase ends when its tasks are done and nobody is inside.

use crate::ahead::{Ahead, Place};
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Looks at the word before a worker goes to sleep: some 100 microseconds.
const SPINS: usize = 3000;

/// Looks before the caller, waiting for the last workers, lets other threads run.
const PATIENCE: usize = 2000;

/// What a phase does: `(task, worker)`.
type Job<'a> = &'a (dyn Fn(usize, usize) + Sync);

struct Shared {
    /// Odd while a phase is open.
    phase: AtomicUsize,
    /// The open phase's job. Written only while the phase is closed and `inside` is zero.
    job: UnsafeCell<Option<(Job<'static>, usize)>>,
    next: AtomicUsize,
    inside: AtomicUsize,
    sleeping: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    /// What threads fetch while they wait.
    ahead: Ahead,
}

// SAFETY: `job` is the only field that is not Sync by itself; its rule is at its declaration.
unsafe impl Sync for Shared {}

/// A set of threads: the caller and its workers.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One phase at a time; how far the caller has fetched ahead.
    turn: Mutex<Place>,
}

impl Pool {
    /// A pool of `threads` threads, the caller included.
    pub(crate) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            phase: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            ahead: Ahead::default(),
        });
        // A system that gives fewer threads than asked for makes the pool slower, not wrong.
        let workers = (1..threads)
            .filter_map(|id| {
                let shared = shared.clone();
                thread::Builder::new().name(format!("onebit-cpu-{id}")).spawn(move || shared.work(id)).ok()
            })
            .collect();
        Pool { shared, workers, turn: Mutex::default() }
    }

    /// Threads, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// What threads fetch from now on while they wait.
    pub(crate) fn ahead(&self) -> &Ahead {
        &self.shared.ahead
    }

    /// Runs `job(task, worker)` for every task below `tasks`; workers are numbered from 0 and none runs two tasks at
    /// once. Returns when all are done.
    pub(crate) fn run(&self, tasks: usize, job: Job<'_>) {
        if tasks <= 1 || self.workers.is_empty() {
            return (0..tasks).for_each(|task| job(task, 0));
        }
        let mut place = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: the lifetime is forgotten only until this call returns, which it does after the phase is closed and
        // nobody is inside; workers enter only open phases.
        let forgotten = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        // SAFETY: the phase is closed, nobody is inside, and this thread holds the turn.
        unsafe { *shared.job.get() = Some((forgotten, tasks)) };
        shared.next.store(0, Ordering::Relaxed);
        shared.phase.fetch_add(1, Ordering::SeqCst);
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            self.workers.iter().for_each(|w| w.thread().unpark());
        }
        let mine = catch_unwind(AssertUnwindSafe(|| shared.take(job, tasks, 0)));
        shared.phase.fetch_add(1, Ordering::SeqCst);
        let mut looks = 0usize;
        while shared.inside.load(Ordering::SeqCst) != 0 {
            looks += 1;
            if looks.is_multiple_of(PATIENCE) {
                thread::yield_now();
            } else if !shared.ahead.fetch(0, &mut place) {
                std::hint::spin_loop();
            }
        }
        let panicked = shared.panicked.swap(false, Ordering::SeqCst);
        drop(place);
        if let Err(panic) = mine {
            resume_unwind(panic);
        }
        assert!(!panicked, "a worker thread panicked; its message is above");
    }
}

/// Tasks that each thread takes in order from its own stretch of them, so that what a task fetches beyond its end is the
/// beginning of the thread's next one. A thread that is done takes the last tasks of another.
pub(crate) struct Shares(Vec<AtomicU64>);

impl Shares {
    pub(crate) fn new(tasks: usize, threads: usize) -> Self {
        let share = |thread| Self::pack(Self::first(tasks, threads, thread), Self::first(tasks, threads, thread + 1));
        Shares((0..threads).map(|thread| AtomicU64::new(share(thread))).collect())
    }

    /// The first task of a thread's stretch.
    pub(crate) fn first(tasks: usize, threads: usize, thread: usize) -> usize {
        tasks * thread / threads
    }

    /// First and end of what is left of a stretch.
    fn pack(first: usize, end: usize) -> u64 {
        (first as u64) << 32 | end as u64
    }

    /// A task for this thread; none when all are taken.
    pub(crate) fn take(&self, thread: usize) -> Option<usize> {
        let own = self.0[thread].fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            let (first, end) = (left >> 32, left & 0xffff_ffff);
            (first < end).then_some(left + (1 << 32))
        });
        if let Ok(left) = own {
            return Some((left >> 32) as usize);
        }
        let others = self.0[thread + 1..].iter().chain(&self.0[..thread]);
        others.into_iter().find_map(|other| {
            let taken = other.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                let (first, end) = (left >> 32, left & 0xffff_ffff);
                (first < end).then(|| left - 1)
            });
            taken.ok().map(|left| (left & 0xffff_ffff) as usize - 1)
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its tasks, so it ends normally.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn take(&self, job: Job<'_>, tasks: usize, worker: usize) {
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            job(task, worker);
        }
    }

    fn work(&self, id: usize) {
        let mut seen = 0;
        let mut looks = 0;
        let mut place = Place::default();
        while !self.stop.load(Ordering::Relaxed) {
            let phase = self.phase.load(Ordering::SeqCst);
            if phase % 2 == 1 && phase != seen {
                seen = phase;
                looks = 0;
                self.enter(phase, id);
            } else if looks < SPINS {
                looks += 1;
                if !self.ahead.fetch(id, &mut place) {
                    std::hint::spin_loop();
                }
            } else {
                // The caller stores the phase and then looks at `sleeping`; this thread does the reverse. So one of
                // the two sees the other, and an unpark that comes before the park is not lost.
                self.sleeping.fetch_add(1, Ordering::SeqCst);
                if self.phase.load(Ordering::SeqCst) == phase && !self.stop.load(Ordering::SeqCst) {
                    thread::park();
                }
                self.sleeping.fetch_sub(1, Ordering::SeqCst);
                looks = 0;
            }
        }
    }

    fn enter(&self, phase: usize, id: usize) {
        self.inside.fetch_add(1, Ordering::SeqCst);
        // Whoever closes a phase does so before it looks at `inside`. If it missed this thread there, this thread
        // finds the phase closed here.
        if self.phase.load(Ordering::SeqCst) == phase {
            // SAFETY: the phase is open and cannot be replaced while this thread is inside.
            if let Some((job, tasks)) = unsafe { *self.job.get() }
                && catch_unwind(AssertUnwindSafe(|| self.take(job, tasks, id))).is_err()
            {
                self.panicked.store(true, Ordering::SeqCst);
            }
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Seconds of one phase in which every thread has one empty task: what fork and join cost. The median of many.
pub fn measure_phase_cost(threads: usize) -> f64 {
    const PHASES: usize = 20_000;
    let pool = Pool::new(threads);
    let mut times: Vec<f64> = (0..PHASES)
        .map(|_| {
            let start = Instant::now();
            pool.run(threads, &|task, worker| {
                std::hint::black_box((task, worker));
            });
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[PHASES / 2]
}

/// Threads that this process may use: the standard library's count, which respects affinity and cgroup quotas.
pub fn default_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for tasks in [0, 1, 2, 7, 1000] {
                let hits: Vec<AtomicU64> = (0..tasks).map(|_| AtomicU64::new(0)).collect();
                pool.run(tasks, &|i, worker| {
                    assert!(worker < threads);
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn shares_are_taken_in_order_and_then_from_the_end_of_others() {
        let shares = Shares::new(7, 3);
        assert_eq!([shares.take(1), shares.take(1)], [Some(2), Some(3)]);
        assert_eq!([shares.take(1), shares.take(1)], [Some(6), Some(5)]);
        assert_eq!(shares.take(2), Some(4));
        assert_eq!([shares.take(2), shares.take(0), shares.take(0)], [Some(1), Some(0), None]);
        for (tasks, threads) in [(1, 2), (2, 5), (1000, 4)] {
            let (pool, shares) = (Pool::new(threads), Shares::new(tasks, threads));
            let hits: Vec<AtomicU64> = (0..tasks).map(|_| AtomicU64::new(0)).collect();
            pool.run(tasks, &|_, worker| {
                let task = shares.take(worker).unwrap();
                hits[task].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn many_short_phases_and_pauses() {
        let pool = Pool::new(3);
        let total = AtomicU64::new(0);
        for round in 0..2000 {
            pool.run(4, &|i, _| {
                total.fetch_add(i as u64, Ordering::Relaxed);
            });
            if round % 500 == 0 {
                thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        assert_eq!(total.load(Ordering::Relaxed), 2000 * 6);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|i, _| assert!(i != 5, "task five"))));
        assert!(result.is_err());
        pool.run(8, &|_, _| {});
    }
}
