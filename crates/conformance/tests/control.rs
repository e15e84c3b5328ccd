//! Tests that can fail: backends that are wrong in one way each, and the group of cases that must notice.

use onebit_conformance::{GROUPS, run};
use onebit_ops::reference::Reference;
use onebit_ops::{
    Activations, Backend, Cache, CacheSpec, Caps, Conv2d, Draw, FormatSupport, Fusions, HeadMap, Op, OpError, Plan,
    PlanOptions, Program, Seen, SlotState, StepInputs, StepOutput, Ticket, UploadOptions, Vector, Weight,
};
use onebit_quant::{Format, Matrix, Symmetry};
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

/// What a backend does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The sparse residuals of a nearly symmetric weight are dropped.
    DropResiduals,
    /// One bias of an affine weight is that of the group before it.
    OneBias,
    /// The last row of a weight repeats the one before.
    LastRow,
    /// The last code byte of every weight is zero.
    CodeTail,
    /// Values of 9-bit activations are kept in 8 bits.
    NarrowActivations,
    /// Grouped and tiled value heads are confused.
    SwapHeadMap,
    /// Slots are not cleared.
    StaleSlot,
    /// A copied slot is the source's of an earlier time: nothing is copied.
    NoCopy,
    /// One accepted row too few enters the state.
    OneTooFew,
    /// Guesses enter the state at once.
    GuessesStay,
    /// All attention layers share one pool.
    OneLayer,
    /// The softmax scale is off by 0.1%.
    Scale,
    /// All query heads read the first key head.
    FirstKeyHead,
    /// The height and width coordinates of a position are ignored.
    FlatPositions,
    /// A replayed step of equal size uses the tokens of the first.
    StaleTokens,
    /// Large steps round differently, by one unit.
    OtherRounding,
    /// Logit rows are taken from the front.
    FirstRows,
    /// The norm's epsilon is forgotten.
    NoEpsilon,
    /// Residuals are not added.
    NoResidual,
    /// Steps are not checked for tokens outside the vocabulary: they wrap.
    WrapTokens,
    /// One candidate too many survives top-k.
    WideTopK,
    /// Top-p, min-p or the mask are not applied.
    NoTopP,
    NoMinP,
    NoMask,
    /// Adjustments forget the divisor.
    NoDivide,
    /// The walk goes from the last token to the first.
    WalkBack,
    /// Log-probabilities are a thousandth off.
    OffProbability,
    /// Carried rows take the token of the first row.
    FirstCarried,
    /// Carried rows take the token that the host gave.
    HostCarried,
    /// Scale and shift of a modulation are confused.
    ScaleShift,
    /// Padding of a text is seen.
    SeePadding,
    /// The first part of joined rows comes last.
    JoinOrder,
    /// A convolution forgets its residual, or the SiLU before it.
    NoConvResidual,
    NoConvSilu,
    /// A group norm has one group.
    OneGroup,
    /// A convolution is normed by what the norm before its own has found.
    StaleNorm,
    /// A product reads the input of the product before it.
    StaleInput,
}

/// The reference with a fault.
struct Broken {
    inner: Reference,
    fault: Fault,
    first_tokens: Mutex<HashMap<usize, Vec<u32>>>,
    large: Mutex<HashSet<Ticket>>,
}

impl Broken {
    fn new(fault: Fault) -> Self {
        Broken { inner: Reference::new(), fault, first_tokens: Mutex::default(), large: Mutex::default() }
    }
}

impl Backend for Broken {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }
    fn fusions(&self) -> Fusions {
        self.inner.fusions()
    }
    fn format_support(&self, format: Format) -> FormatSupport {
        self.inner.format_support(format)
    }

    fn upload(&self, name: &str, parts: &[Matrix<'_>], options: UploadOptions) -> Result<Weight, OpError> {
        let mut bytes: Vec<[Vec<u8>; 3]> =
            parts.iter().map(|m| [m.codes.to_vec(), m.scales.to_vec(), m.biases.to_vec()]).collect();
        for (m, [codes, scales, biases]) in parts.iter().zip(&mut bytes) {
            match (self.fault, m.format) {
                (Fault::DropResiduals, Format::Affine { group, scale, bias, bits, .. }) => {
                    if let Symmetry::Rounding(residuals) = m.symmetry() {
                        for r in residuals {
                            let at = r.row * (m.cols / usize::from(group)) + r.group;
                            let half = if bits == 1 { 2.0 } else { 1.0 };
                            let mut derived = Vec::new();
                            bias.write(-scale.read(scales, at) / half, &mut derived);
                            biases[at * derived.len()..][..derived.len()].copy_from_slice(&derived);
                        }
                    }
                }
                (Fault::OneBias, Format::Affine { bias, .. }) => {
                    let (size, last) = (bias.bytes(), biases.len() / bias.bytes() - 1);
                    if last > 0 {
                        biases.copy_within((last - 1) * size..last * size, last * size);
                    }
                }
                (Fault::LastRow, f) if f.is_packed() && m.rows > 1 => {
                    for part in [codes, scales, biases] {
                        let row = part.len() / m.rows;
                        part.copy_within((m.rows - 2) * row..(m.rows - 1) * row, (m.rows - 1) * row);
                    }
                }
                (Fault::CodeTail, Format::Affine { .. }) => {
                    // The last code byte of each row.
                    let row = codes.len() / m.rows;
                    codes.chunks_exact_mut(row).for_each(|row| row[row.len() - 1] = 0);
                }
                _ => {}
            }
        }
        let changed: Vec<Matrix<'_>> = parts
            .iter()
            .zip(&bytes)
            .map(|(m, [codes, scales, biases])| Matrix { codes, scales, biases, ..*m })
            .collect();
        self.inner.upload(name, &changed, options)
    }

    fn upload_vector(&self, values: &[f32]) -> Result<Vector, OpError> {
        self.inner.upload_vector(values)
    }
    fn cache(&self, spec: CacheSpec) -> Result<Cache, OpError> {
        self.inner.cache(spec)
    }

    fn clear_slot(&self, cache: &Cache, slot: usize) -> Result<(), OpError> {
        if self.fault == Fault::StaleSlot { Ok(()) } else { self.inner.clear_slot(cache, slot) }
    }

    fn copy_slot(&self, cache: &Cache, from: usize, to: usize) -> Result<(), OpError> {
        if self.fault == Fault::NoCopy { Ok(()) } else { self.inner.copy_slot(cache, from, to) }
    }

    fn copy_page(&self, cache: &Cache, from: u32, to: u32) -> Result<(), OpError> {
        if self.fault == Fault::NoCopy { Ok(()) } else { self.inner.copy_page(cache, from, to) }
    }

    fn read_slot(&self, cache: &Cache, slot: usize, layer: usize) -> Result<SlotState, OpError> {
        self.inner.read_slot(cache, slot, layer)
    }

    fn compile(&self, program: Program, cache: &Cache, options: PlanOptions) -> Result<Plan, OpError> {
        let mut program = program.lower(self.fusions());
        let mut dropped = Vec::new();
        let (mut norms, mut inputs) = (Vec::new(), Vec::new());
        for (at, op) in program.ops.iter_mut().enumerate() {
            match (self.fault, op) {
                (Fault::NarrowActivations, Op::Linear { activations, .. }) if *activations == Activations::I9G128 => {
                    *activations = Activations::I8G128;
                }
                (Fault::SwapHeadMap, Op::GatedDelta { map, .. }) => {
                    *map = if *map == HeadMap::Grouped { HeadMap::Tiled } else { HeadMap::Grouped };
                }
                (Fault::OneLayer, Op::Attention { layer, .. }) => *layer = 0,
                (Fault::Scale, Op::Attention { scale, .. }) => *scale *= 1.001,
                (Fault::FirstKeyHead, Op::Attention { k, v, .. }) => (k.stride, v.stride) = (0, 0),
                (Fault::NoEpsilon, Op::RmsNorm { norm, .. }) => norm.eps = 0.0,
                (Fault::NoResidual, Op::Add { .. }) => dropped.push(at),
                (Fault::ScaleShift, Op::Modulate { scale, shift, .. }) => std::mem::swap(scale, shift),
                (Fault::SeePadding, Op::FullAttention { seen: Seen::Causal { keys }, .. }) => *keys = usize::MAX,
                (Fault::JoinOrder, Op::JoinRows { parts, .. }) => parts.rotate_left(1),
                (Fault::NoConvResidual, Op::Conv2d { conv, .. }) => conv.residual = None,
                (Fault::NoConvSilu, Op::Conv2d { conv: Conv2d { norm: Some(norm), .. }, .. }) => norm.silu = false,
                (Fault::OneGroup, Op::GroupNorm { groups, .. }) => *groups = 1,
                (Fault::StaleNorm, Op::Conv2d { conv: Conv2d { norm: Some(norm), .. }, .. }) => {
                    norms.push(norm.affine);
                    norm.affine = norms[norms.len().saturating_sub(2)];
                }
                (Fault::StaleInput, Op::Linear { x, .. }) => {
                    inputs.push(*x);
                    *x = inputs[inputs.len().saturating_sub(2)];
                }
                _ => {}
            }
        }
        for at in dropped {
            if let Op::Add { a, out, .. } = program.ops[at] {
                // `a - a + a` would need ops that do not exist; a gate of the product with itself is as wrong.
                program.ops[at] = Op::SwiGlu { gate: a, up: a, out };
            }
        }
        self.inner.compile(program, cache, options)
    }

    fn run(&self, plan: &Plan, mut inputs: StepInputs) -> Result<Ticket, OpError> {
        match self.fault {
            Fault::OneTooFew => inputs.segments.iter_mut().for_each(|s| s.accepted = s.accepted.saturating_sub(1)),
            Fault::GuessesStay => inputs.segments.iter_mut().for_each(|s| {
                (s.speculative, s.accepted) = (false, 0);
            }),
            Fault::FlatPositions => inputs.positions.iter_mut().for_each(|p| *p = [p[0]; 3]),
            Fault::StaleTokens => {
                let mut seen = self.first_tokens.lock().unwrap();
                inputs.tokens = seen.entry(inputs.tokens.len()).or_insert(inputs.tokens).clone();
            }
            Fault::FirstRows => {
                let count = inputs.logit_rows.len();
                inputs.logit_rows = (0..count).collect();
            }
            Fault::WideTopK => change(&mut inputs, |d| d.top_k += u32::from(d.top_k > 0)),
            Fault::NoTopP => change(&mut inputs, |d| d.top_p = 1.0),
            Fault::NoMinP => change(&mut inputs, |d| d.min_p = 0.0),
            Fault::NoMask => change(&mut inputs, |d| d.mask = None),
            Fault::NoDivide => change(&mut inputs, |d| d.adjust.iter_mut().for_each(|a| a.divide = 1.0)),
            Fault::WalkBack => change(&mut inputs, |d| d.uniform = 1.0 - f64::EPSILON - d.uniform.min(0.99)),
            Fault::FirstCarried => inputs.carried.iter_mut().for_each(|c| c.from = 0),
            Fault::HostCarried => {
                inputs.carried.clear();
                inputs.tokens.iter_mut().for_each(|t| *t = (*t).min(69));
            }
            Fault::WrapTokens => inputs.tokens.iter_mut().for_each(|t| *t %= 3),
            _ => {}
        }
        let large = inputs.tokens.len() > 100;
        let ticket = self.inner.run(plan, inputs)?;
        if large {
            self.large.lock().unwrap().insert(ticket);
        }
        Ok(ticket)
    }

    fn poll(&self, ticket: Ticket) -> Result<Option<StepOutput>, OpError> {
        let mut output = self.inner.poll(ticket)?;
        if self.fault == Fault::OtherRounding && self.large.lock().unwrap().remove(&ticket) {
            let values = output.iter_mut().flat_map(|o| o.values.values_mut()).flatten();
            values.filter(|v| **v != 0.0).for_each(|v| *v = f32::from_bits(v.to_bits() ^ 1));
        }
        if self.fault == Fault::OffProbability {
            output.iter_mut().flat_map(|o| &mut o.sampled).for_each(|s| s.logprob *= 0.999);
        }
        Ok(output)
    }
}

fn change(inputs: &mut StepInputs, how: impl FnMut(&mut Draw)) {
    inputs.draws.iter_mut().for_each(how);
}

/// The named group fails on a backend with this fault, and says where.
fn caught(fault: Fault, groups: &[&str]) {
    for name in groups {
        let group = GROUPS.iter().find(|g| g.name == *name).expect("a group of that name");
        let outcome = run(group, &Broken::new(fault));
        assert!(!outcome.failures.is_empty(), "{fault:?} passes {name}, all {} comparisons", outcome.checks);
        let message = &outcome.failures[0];
        assert!(message.starts_with(&format!("{name}/")), "the failure names its case: {message}");
        println!("{fault:?}: {} of {} comparisons, first: {message}", outcome.failures.len(), outcome.checks);
    }
}

#[test]
fn a_right_backend_passes() {
    for name in ["contract", "matmul_integers", "slots", "select", "sample", "speculation"] {
        let group = GROUPS.iter().find(|g| g.name == name).expect("a group of that name");
        let outcome = run(group, &Broken::new(Fault::None));
        assert_eq!(outcome.failures, Vec::<String>::new());
        assert!(outcome.checks > 5, "{name} compares {} times", outcome.checks);
    }
}

#[test]
fn wrong_weights_are_caught() {
    caught(Fault::DropResiduals, &["matmul_formats", "embedding"]);
    caught(Fault::OneBias, &["matmul_widths", "embedding"]);
    caught(Fault::LastRow, &["matmul_surroundings", "matmul_integers"]);
    caught(Fault::CodeTail, &["matmul_surroundings", "matmul_integers"]);
}

#[test]
fn wrong_products_are_caught() {
    caught(Fault::NarrowActivations, &["matmul_integers", "matmul_epilogues"]);
    caught(Fault::NoResidual, &["matmul_epilogues"]);
    caught(Fault::OtherRounding, &["neighbours", "matmul_batches"]);
    caught(Fault::StaleTokens, &["replay"]);
    caught(Fault::WrapTokens, &["contract"]);
}

#[test]
fn wrong_small_ops_are_caught() {
    caught(Fault::NoEpsilon, &["norms"]);
    caught(Fault::FlatPositions, &["rope"]);
    caught(Fault::FirstRows, &["select"]);
}

#[test]
fn wrong_pictures_are_caught() {
    caught(Fault::ScaleShift, &["latents"]);
    caught(Fault::JoinOrder, &["latents"]);
    caught(Fault::SeePadding, &["full_attention"]);
    for fault in [Fault::NoConvResidual, Fault::NoConvSilu, Fault::OneGroup] {
        caught(fault, &["pictures"]);
    }
}

#[test]
fn a_wrong_order_is_caught() {
    caught(Fault::StaleNorm, &["chains"]);
    caught(Fault::StaleInput, &["chains"]);
}

#[test]
fn wrong_choices_are_caught() {
    let cuts = [Fault::WideTopK, Fault::NoTopP, Fault::NoMinP, Fault::NoMask, Fault::NoDivide, Fault::WalkBack];
    for fault in cuts.into_iter().chain([Fault::OffProbability, Fault::FirstCarried, Fault::HostCarried]) {
        caught(fault, &["sample"]);
    }
}

#[test]
fn wrong_state_is_caught() {
    caught(Fault::SwapHeadMap, &["gated_delta"]);
    caught(Fault::StaleSlot, &["conv", "slots"]);
    caught(Fault::NoCopy, &["slots", "attention"]);
    caught(Fault::OneTooFew, &["speculation"]);
    caught(Fault::GuessesStay, &["speculation"]);
}

#[test]
fn wrong_attention_is_caught() {
    for fault in [Fault::OneLayer, Fault::Scale, Fault::FirstKeyHead] {
        caught(fault, &["attention"]);
    }
}
