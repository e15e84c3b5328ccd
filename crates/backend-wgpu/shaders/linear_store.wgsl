// A result of a product where it goes, with what is added to it.

fn store(y: f32, m: u32, row: u32) {
    var value = y;
    if (EPILOGUE == 1u) {
        value += arena[place(p.residual, m, p.first_row + row)];
    }
    arena[p.out + m * p.out_stride + row] = value;
}
