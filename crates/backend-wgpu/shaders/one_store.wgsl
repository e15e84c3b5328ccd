// A result of a product of one row where it goes, with what is added to it: for the first block that is read before the product.

fn look_ahead(row: u32) -> f32 {
    if (EPILOGUE == 1u && row < p.rows) {
        return arena[place(p.residual, 0u, p.first_row + row)];
    }
    return 0.0;
}

fn store_with(y: f32, row: u32, n: u32, known: f32) {
    var value = y;
    if (EPILOGUE == 1u) {
        var added = known;
        if (n > 0u) {
            added = look_ahead(row);
        }
        value += added;
    }
    arena[p.out + row] = value;
}
