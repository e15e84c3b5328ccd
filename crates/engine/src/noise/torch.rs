//! `torch.randn` on the CPU in f32: the Mersenne Twister MT19937 (Matsumoto and Nishimura 1998) and the transform of Box and
//! Muller (1958). Short draws and long ones take different paths there, so they do here.

use std::f64::consts::TAU;

/// Words of the generator's state, and the distance of the word that is mixed in.
const WORDS: usize = 624;
const SHIFT: usize = 397;

/// Numbers that one turn of the long path makes, in pairs of halves.
const BLOCK: usize = 16;

/// Standard normal numbers, as `torch.randn(len, generator=torch.Generator().manual_seed(seed))`.
pub(super) fn normal(seed: u64, len: usize) -> Vec<f32> {
    let mut twister = Twister::new(seed as u32);
    if len < BLOCK { short(&mut twister, len) } else { long(&mut twister, len) }
}

/// Pairs in f64, one after the other.
fn short(twister: &mut Twister, len: usize) -> Vec<f32> {
    let mut values = Vec::with_capacity(len + 1);
    while values.len() < len {
        let (angle, radius) = (TAU * twister.unit53(), twister.unit53());
        let radius = (-2.0 * (-radius).ln_1p()).sqrt();
        values.extend([(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]);
    }
    values.truncate(len);
    values
}

/// Blocks of 16 in f32 from uniform numbers drawn beforehand. A last block that is not full is drawn anew and covers the
/// last 16 places, those of the block before it included.
fn long(twister: &mut Twister, len: usize) -> Vec<f32> {
    let mut values: Vec<f32> = (0..len).map(|_| twister.unit24()).collect();
    values.chunks_exact_mut(BLOCK).for_each(transform);
    if !len.is_multiple_of(BLOCK) {
        let last = &mut values[len - BLOCK..];
        last.fill_with(|| twister.unit24());
        transform(last);
    }
    values
}

/// Uniform numbers of a block become normal ones: the first half gives radii, the second one angles.
fn transform(block: &mut [f32]) {
    let (first, second) = block.split_at_mut(BLOCK / 2);
    for (a, b) in first.iter_mut().zip(second) {
        // Roundings to f32 stand where torch has them; the functions between are exact enough to be its own.
        let from_zero = 1.0 - *a;
        let radius = (-2.0 * f64::from(from_zero).ln()).sqrt();
        let angle = f64::from(TAU as f32 * *b);
        *a = (radius * angle.cos()) as f32;
        *b = (radius * angle.sin()) as f32;
    }
}

/// MT19937 with 32-bit seeds.
struct Twister {
    state: [u32; WORDS],
    next: usize,
}

impl Twister {
    fn new(seed: u32) -> Self {
        let mut state = [seed; WORDS];
        for i in 1..WORDS {
            let before = state[i - 1];
            state[i] = (before ^ (before >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Self { state, next: WORDS }
    }

    fn turn(&mut self) {
        for i in 0..WORDS {
            let mixed = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % WORDS] & 0x7fff_ffff);
            let odd = if mixed & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + SHIFT) % WORDS] ^ (mixed >> 1) ^ odd;
        }
        self.next = 0;
    }

    fn word(&mut self) -> u32 {
        if self.next == WORDS {
            self.turn();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// Uniform in `[0, 1)`, 24 bits.
    fn unit24(&mut self) -> f32 {
        (self.word() & 0x00ff_ffff) as f32 / (1 << 24) as f32
    }

    /// Uniform in `[0, 1)`, 53 bits of two words, the high one first.
    fn unit53(&mut self) -> f64 {
        let wide = u64::from(self.word()) << 32 | u64::from(self.word());
        (wide & ((1 << 53) - 1)) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_of_the_paper() {
        // What C++'s std::mt19937 must give, as its standard says: the 10,000th word for the default seed.
        let mut twister = Twister::new(5489);
        let last = (0..10_000).map(|_| twister.word()).last();
        assert_eq!(last, Some(4_123_659_995));
    }
}
