//! A picture in memory.

/// 8-bit RGB pixels, row by row from the top.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pixels {
    width: usize,
    height: usize,
    rgb: Vec<[u8; 3]>,
}

impl Pixels {
    /// One colour.
    #[must_use]
    pub fn filled(width: usize, height: usize, colour: [u8; 3]) -> Self {
        Pixels { width, height, rgb: vec![colour; width * height] }
    }

    /// From (height, width, 3) row-major; `None` when there are more or fewer bytes.
    #[must_use]
    pub fn from_bytes(width: usize, height: usize, bytes: &[u8]) -> Option<Self> {
        let (rgb, rest) = bytes.as_chunks::<3>();
        (rest.is_empty() && rgb.len() == width * height).then(|| Pixels { width, height, rgb: rgb.to_vec() })
    }

    /// (height, width, 3) row-major.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.rgb.as_flattened()
    }

    /// Pixels from left to right.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Pixels from top to bottom.
    #[must_use]
    pub fn height(&self) -> usize {
        self.height
    }

    /// A pixel, where there is one.
    pub fn get_mut(&mut self, x: usize, y: usize) -> Option<&mut [u8; 3]> {
        if x < self.width { self.rgb.get_mut(y * self.width + x) } else { None }
    }

    /// Paints a rectangle; what is outside is left out.
    pub fn fill(&mut self, (x, y): (usize, usize), (width, height): (usize, usize), colour: [u8; 3]) {
        for row in y..(y + height).min(self.height) {
            let row = &mut self.rgb[row * self.width..][..self.width];
            let (from, to) = (x.min(self.width), (x + width).min(self.width));
            row[from..to].fill(colour);
        }
    }

    /// Lays a picture upon this one; what reaches beyond is left out.
    pub fn lay(&mut self, (x, y): (usize, usize), other: &Pixels) {
        let width = other.width.min(self.width.saturating_sub(x));
        for (row, pixels) in other.rgb.chunks(other.width).enumerate().take(self.height.saturating_sub(y)) {
            self.rgb[(y + row) * self.width + x..][..width].copy_from_slice(&pixels[..width]);
        }
    }

    /// Every `by` times `by` pixels become one, their mean. Pixels at the right and lower edge that fill no square are left
    /// out. Whole squares need no filter, and a library would bring one for every kind of picture.
    #[must_use]
    pub fn shrunk(&self, by: usize) -> Pixels {
        let (width, height) = (self.width / by, self.height / by);
        let mean = |x: usize, y: usize| {
            let rows = (y * by..(y + 1) * by).map(|row| &self.rgb[row * self.width + x * by..][..by]);
            let mut sums = [0usize; 3];
            for pixel in rows.flatten() {
                sums.iter_mut().zip(pixel).for_each(|(sum, level)| *sum += usize::from(*level));
            }
            let area = by * by;
            sums.map(|sum| ((sum + area / 2) / area) as u8)
        };
        let rgb = (0..width * height).map(|i| mean(i % width, i / width)).collect();
        Pixels { width, height, rgb }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_become_their_mean() {
        let bytes: Vec<u8> = (0..5 * 4).flat_map(|i| [i as u8 * 10, 7, 255]).collect();
        let picture = Pixels::from_bytes(5, 4, &bytes).expect("a picture");
        let small = picture.shrunk(2);
        assert_eq!((small.width(), small.height()), (2, 2));
        // (0 + 10 + 50 + 60) / 4, and two columns on.
        assert_eq!(small.bytes()[..6], [30, 7, 255, 50, 7, 255]);
        assert_eq!(picture.shrunk(1), picture);
        assert!(Pixels::from_bytes(5, 4, &bytes[1..]).is_none());
    }

    #[test]
    fn nothing_is_drawn_outside() {
        let mut sheet = Pixels::filled(4, 3, [0; 3]);
        sheet.lay((3, 2), &Pixels::filled(5, 5, [9; 3]));
        sheet.lay((9, 9), &Pixels::filled(2, 2, [8; 3]));
        sheet.fill((0, 0), (2, 99), [5; 3]);
        let count = |colour: u8| sheet.bytes().iter().filter(|level| **level == colour).count() / 3;
        assert_eq!((count(9), count(8), count(5)), (1, 0, 6));
        assert!(sheet.get_mut(4, 0).is_none() && sheet.get_mut(0, 3).is_none() && sheet.get_mut(3, 2).is_some());
    }
}
