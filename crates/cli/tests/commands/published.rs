//! The published facts of the binary 27B pack: 498 packed matrices; with `in_proj_qkv`/`z` and `in_proj_b`/`a` counted as
//! pairs 402, of which 396 are symmetric to the last bit and 6 hold groups whose scale is so small that half of it rounds.

use onebit::shape::Shape;
use onebit_models::{Part, outline};
use onebit_ops::WeightSource;
use onebit_quant::{Matrix, Symmetry};

/// Layers whose input pair, and the one whose down projection, holds such a group. Five and one fit the published
/// 412,262,400 bytes of offsets that the other 396 shed.
const INPUT_LAYERS: [usize; 5] = [1, 2, 14, 16, 20];
const DOWN_LAYER: usize = 31;

/// The 402: parts of one pair share a name.
fn pair(part: &Part) -> String {
    let name = part.tensor.replace("in_proj_z", "in_proj_qkv").replace("in_proj_a", "in_proj_b");
    name.replace("language_model.", "")
}

fn rounds(name: &str) -> bool {
    let layer = |i: usize, leaf: &str| name.ends_with(&format!("layers.{i}.{leaf}"));
    INPUT_LAYERS.iter().any(|i| layer(*i, "linear_attn.in_proj_qkv")) || layer(DOWN_LAYER, "mlp.down_proj")
}

#[test]
fn a_27b_sheds_the_offsets_of_396_matrices_and_keeps_6_as_rounding() {
    let shape = Shape::new("bonsai-27b").expect("a published shape");
    let (_, outline) = outline(&shape).expect("the shape is complete");
    assert_eq!(outline.parts.len(), 498);

    let mut pairs: Vec<(String, bool, u64)> = Vec::new();
    for part in &outline.parts {
        let matrix = shape.matrix(&part.tensor).expect("readable").expect("there");
        // The smallest subnormal scale: half of it is no f16, so the offset is a rounding step away.
        let mut scales = matrix.scales[..2].to_vec();
        let mut biases = matrix.biases[..2].to_vec();
        if rounds(&part.tensor) {
            scales = 1u16.to_le_bytes().to_vec();
            biases = 0x8000u16.to_le_bytes().to_vec();
        }
        let first_groups = |stored: &[u8], first: &[u8]| [first, &stored[2..]].concat();
        let (scales, biases) = (first_groups(matrix.scales, &scales), first_groups(matrix.biases, &biases));
        let stored =
            Matrix::new(matrix.format, matrix.rows, matrix.cols, matrix.codes, &scales, &biases).expect("same sizes");
        let exact = match stored.symmetry() {
            Symmetry::Exact => true,
            Symmetry::Rounding(residuals) => {
                assert_eq!(residuals.len(), 1, "{}", part.tensor);
                false
            }
            Symmetry::Affine => panic!("{} is affine", part.tensor),
        };
        let (name, bytes) = (pair(part), biases.len() as u64);
        match pairs.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, all_exact, sum)) => {
                *all_exact &= exact;
                *sum += bytes;
            }
            None => pairs.push((name, exact, bytes)),
        }
    }
    assert_eq!(pairs.len(), 402);
    let shed: Vec<u64> = pairs.iter().filter(|(_, exact, _)| *exact).map(|(.., bytes)| *bytes).collect();
    assert_eq!(shed.len(), 396);
    assert_eq!(shed.iter().sum::<u64>(), 412_262_400);
}
