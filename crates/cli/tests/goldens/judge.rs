//! The profiles by which an engine's output is judged against a case.
//!
//! f32: largest error at most 5e-4 of the largest logit, relative rms at most 1e-4, greedy ids equal (float32 torch
//! itself differs from float64 by up to 7e-4 absolute on the hybrids). Integer activations: over all rows of the case, at most
//! 1.6 times the rms and 2.5 times the KL divergence of the case's own simulation of 8-bit activations in groups of
//! 128, and at most 0.07 below its top-1 agreement; single rows are heavy-tailed and are not gated.

use crate::case::Case;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    F32,
    Int8,
}

pub(crate) struct Judged<'a> {
    case: &'a Case,
    profile: Profile,
    findings: Vec<String>,
    expected: Vec<f32>,
    got: Vec<f32>,
}

/// Relative rms, mean KL and top-1 agreement of rows of `cols` logits.
struct Distance {
    rel_max: f64,
    rel_rms: f64,
    kl: f64,
    top1: f64,
}

fn distance(expected: &[f32], got: &[f32], cols: usize) -> Distance {
    let pairs = || expected.iter().zip(got).map(|(e, g)| (f64::from(*e), f64::from(*g)));
    let top = pairs().fold(0.0f64, |m, (e, _)| m.max(e.abs()));
    let worst = pairs().fold(0.0f64, |m, (e, g)| if g.is_finite() { m.max((e - g).abs()) } else { f64::INFINITY });
    let (num, den) = pairs().fold((0.0, 0.0), |(n, d), (e, g)| (n + (e - g) * (e - g), d + e * e));
    let (mut kl, mut same, mut rows) = (0.0, 0, 0);
    for (e, g) in expected.chunks_exact(cols).zip(got.chunks_exact(cols)) {
        let (p, q) = (log_softmax(e), log_softmax(g));
        kl += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
        same += usize::from(argmax(e) == argmax(g));
        rows += 1;
    }
    let rows_f = f64::from(rows.max(1));
    Distance {
        rel_max: worst / top.max(1e-30),
        rel_rms: (num / den.max(1e-60)).sqrt(),
        kl: kl / rows_f,
        top1: same as f64 / rows_f,
    }
}

fn log_softmax(x: &[f32]) -> Vec<f64> {
    let top = x.iter().fold(f64::NEG_INFINITY, |m, v| m.max(f64::from(*v)));
    let sum: f64 = x.iter().map(|v| (f64::from(*v) - top).exp()).sum();
    x.iter().map(|v| f64::from(*v) - top - sum.ln()).collect()
}

pub(crate) fn argmax(x: &[f32]) -> usize {
    x.iter().enumerate().fold(0, |best, (i, v)| if *v > x[best] { i } else { best })
}

impl<'a> Judged<'a> {
    pub(crate) fn new(case: &'a Case, profile: Profile) -> Self {
        Judged { case, profile, findings: Vec::new(), expected: Vec::new(), got: Vec::new() }
    }

    fn find(&mut self, name: &str, text: String) {
        self.findings.push(format!("{}: {name}: {text}", self.case.name));
    }

    pub(crate) fn logits(&mut self, name: &str, got: &[f32]) {
        let expected = self.case.values(name);
        let got = &self.case.kept_rows(name, got);
        if expected.len() != got.len() {
            return self.find(name, format!("{} values expected, {} came", expected.len(), got.len()));
        }
        let cols = *self.case.shape(name).last().expect("logits have columns");
        if self.profile == Profile::F32 {
            let d = distance(&expected, got, cols);
            let rows = expected.len() / cols;
            if d.rel_max > 5e-4 || d.rel_rms > 1e-4 || (1.0 - d.top1) * rows as f64 >= 0.5 {
                let Distance { rel_max, rel_rms, top1, .. } = d;
                self.find(name, format!("relative max {rel_max:.2e}, rms {rel_rms:.2e}, top-1 {top1:.3}"));
            }
        }
        self.expected.extend(expected);
        self.got.extend(got);
    }

    pub(crate) fn values(&mut self, name: &str, got: &[f32]) {
        let expected = self.case.values(name);
        self.compare(name, &expected, got);
    }

    /// Relative rms at most 2e-4.
    pub(crate) fn compare(&mut self, name: &str, expected: &[f32], got: &[f32]) {
        if expected.len() != got.len() {
            return self.find(name, format!("{} values expected, {} came", expected.len(), got.len()));
        }
        let rms = distance(expected, got, expected.len()).rel_rms;
        if rms.is_nan() || rms > 2e-4 {
            self.find(name, format!("relative rms {rms:.2e}"));
        }
    }

    pub(crate) fn ids(&mut self, name: &str, got: &[u32]) {
        let expected = self.case.ids(name);
        if expected != got {
            self.find(name, format!("expected {expected:?}, got {got:?}"));
        }
    }

    pub(crate) fn findings(mut self) -> Vec<String> {
        if self.profile == Profile::Int8 {
            let sim = |key: &str| self.case.facts["int8_act_sim_g128"][key].as_f64();
            if let (Some(rms), Some(kl), Some(top1)) = (sim("rel_rms"), sim("kl_mean"), sim("top1_agree")) {
                let cols = *self.case.shape("logits.1").last().expect("logits have columns");
                let d = distance(&self.expected, &self.got, cols);
                if !(d.rel_rms <= 1.6 * rms && d.kl <= 2.5 * kl && d.top1 >= top1 - 0.07) {
                    let text = format!(
                        "rms {:.3e} (simulated {rms:.3e}), KL {:.3e} ({kl:.3e}), top-1 {:.3} ({top1:.3})",
                        d.rel_rms, d.kl, d.top1
                    );
                    self.find("all logits", text);
                }
            }
        }
        self.findings
    }
}
