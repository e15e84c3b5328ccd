//! How the gated delta rule is divided among blocks, and by which of its kernels.

use crate::Arch;
use crate::launch::{Launch, PROMPT_ROWS, launch};
use crate::params::GROUP;
use onebit_ops::OpError;

/// What a device has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub arch: Arch,
    /// Most bytes of shared memory of a thread block.
    pub shared: u32,
    pub multiprocessors: u32,
}

/// Launches of the delta rule, in order, and the bytes of what the first makes for the second.
///
/// # Errors
/// A key dimension above 256.
pub(crate) fn gated_delta(
    rows: usize,
    [key_heads, heads]: [usize; 2],
    [key_dim, value_dim]: [usize; 2],
) -> Result<(Vec<Launch>, usize), OpError> {
    const THREADS: usize = 128;
    // A thread keeps 32 values of a column.
    let lanes = key_dim.div_ceil(32).next_power_of_two();
    if lanes > 8 {
        return Err(OpError::Shape {
            op: "gated_delta",
            what: "key dimension on cuda".to_owned(),
            wanted: "up to 256".to_owned(),
            got: key_dim.to_string(),
        });
    }
    let (columns, width) = (THREADS / lanes, lanes * 32);
    // Some columns of one head a block; segments are shared among the blocks of the third dimension.
    let grid = [value_dim.div_ceil(columns), heads, rows.min(16)];
    if rows < PROMPT_ROWS {
        return Ok((vec![launch(format!("gated_delta_k{width}"), grid, THREADS)], 0));
    }
    let make = launch(format!("delta_make_k{width}"), [rows, 1, 1], 256);
    let row = 2 * key_heads * width + (2 * heads).next_multiple_of(4);
    Ok((vec![make, launch(format!("delta_rows_k{width}"), grid, THREADS)], rows * row * size_of::<f32>()))
}

/// Most rows of `gated_delta_sequences`: with more of them, most belong to a prompt.
const SEQUENCES: usize = 64;

/// The delta rule where its results become the input of the product behind, on heads of as many keys and values as a group has:
/// `gated_delta_rounds` for one row, a block a head; `gated_delta_sequences` for some, a block a multiprocessor with room for three
/// states.
pub(crate) fn rounds(rows: usize, heads: usize, dims: [usize; 2], room: Room) -> Option<Launch> {
    const STATES: usize = 3 * GROUP * GROUP * size_of::<f32>();
    if dims != [GROUP; 2] || rows > SEQUENCES {
        return None;
    }
    if rows == 1 {
        return Some(launch("gated_delta_rounds", [1, heads, 1], 4 * GROUP));
    }
    // Beside the states, what the kernel declares.
    let has_room = room.arch >= Arch::Sm90a && room.shared as usize >= STATES + (27 << 10);
    let blocks = (rows * heads).min(room.multiprocessors as usize);
    has_room.then(|| Launch { shared: STATES as u32, ..launch("gated_delta_sequences", [1, blocks, 1], 4 * GROUP) })
}

/// Floats of one row of the delta rule's pending area: keys, values, log decay and beta of every value head (key heads
/// are at most as many).
pub(crate) fn pending_row(heads: usize, key_dim: usize, value_dim: usize) -> usize {
    heads * (key_dim + value_dim + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_round_their_results() {
        let room = Room { arch: Arch::Sm90a, shared: 227 << 10, multiprocessors: 132 };
        let found = |rows, dims, room| rounds(rows, 48, dims, room).map(|launch| (launch.kernel, launch.grid[1]));
        let named = |name: &str, blocks| Some((name.to_owned(), blocks));
        assert_eq!(found(1, [128; 2], room), named("gated_delta_rounds", 48));
        assert_eq!(found(2, [128; 2], room), named("gated_delta_sequences", 96));
        assert_eq!(found(32, [128; 2], room), named("gated_delta_sequences", 132));
        assert_eq!(found(65, [128; 2], room), None);
        assert_eq!(found(1, [64, 128], room), None);
        assert_eq!(found(2, [128; 2], Room { arch: Arch::Sm89, ..room }), None);
        assert_eq!(found(2, [128; 2], Room { shared: 99 << 10, ..room }), None);
    }

    #[test]
    fn wide_keys_are_refused() {
        assert!(gated_delta(1, [1, 1], [256, 64]).is_ok());
        let error = gated_delta(1, [1, 1], [257, 64]).unwrap_err().to_string();
        assert!(error.contains("257"), "{error}");
    }
}
