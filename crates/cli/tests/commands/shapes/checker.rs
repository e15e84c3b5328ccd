//! What stands in a picture of simple shapes: connected areas of one colour, and which shape each of them is. The same as
//! `models/training/sprout/check.py`, with which the model's card was scored.

pub(super) const COLOURS: [&str; 11] =
    ["red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white", "paper"];
pub(super) const SHAPES: [&str; 7] = ["circle", "square", "triangle", "diamond", "cross", "star", "heart"];

const PALETTE: [[i32; 3]; 11] = [
    [220, 40, 40],
    [245, 140, 30],
    [250, 215, 50],
    [40, 160, 70],
    [45, 90, 210],
    [130, 60, 170],
    [245, 150, 190],
    [125, 80, 45],
    [30, 30, 30],
    [250, 250, 250],
    [228, 222, 210],
];

/// Shapes are compared on a grid of so many points in each direction.
const GRID: usize = 32;

/// Pixels of an area that have nothing else within [`REACH`] pixels; the soft edge of another shape has none.
const SOLID: usize = 9;
const REACH: usize = 2;

/// The ends (right and bottom) are not in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Area {
    /// Index in [`COLOURS`].
    pub(super) colour: usize,
    /// Index in [`SHAPES`].
    pub(super) shape: usize,
    pub(super) left: usize,
    pub(super) right: usize,
    pub(super) top: usize,
    pub(super) bottom: usize,
}

/// A set of pixels.
struct Mask {
    width: usize,
    height: usize,
    bits: Vec<bool>,
}

impl Mask {
    fn new(width: usize, height: usize, inside: impl Fn(usize, usize) -> bool) -> Mask {
        let bits = (0..width * height).map(|i| inside(i % width, i / width)).collect();
        Mask { width, height, bits }
    }

    fn at(&self, x: usize, y: usize) -> bool {
        self.bits[y * self.width + x]
    }

    /// Every row from its first to its last pixel: what stands inside a shape leaves no hole in it.
    fn filled(&self) -> Mask {
        let ends = |y: usize| {
            let mut set = (0..self.width).filter(|x| self.at(*x, y));
            let first = set.next();
            first.map(|first| (first, set.next_back().unwrap_or(first)))
        };
        let ends: Vec<Option<(usize, usize)>> = (0..self.height).map(ends).collect();
        Mask::new(self.width, self.height, |x, y| ends[y].is_some_and(|(first, last)| (first..=last).contains(&x)))
    }
}

/// Signed distance to the edge of a shape of radius 1, about; negative inside. y grows downwards.
fn distance(shape: usize, x: f32, y: f32) -> f32 {
    let (ax, ay) = (x.abs(), y.abs());
    match SHAPES[shape] {
        "circle" => x.hypot(y) - 1.0,
        "square" => ax.max(ay) - 0.86,
        "triangle" => (y - 0.8).max((1.8 * ax - y - 1.0) / 2.06),
        "diamond" => ax + ay - 1.0,
        "cross" => (ax - 0.95).max(ay - 0.33).min((ax - 0.33).max(ay - 0.95)),
        "star" => {
            let step = std::f32::consts::TAU / 5.0;
            let angle = ((x.atan2(-y) + step / 2.0).rem_euclid(step) - step / 2.0).abs();
            let (dx, dy) = (0.45 * 0.8090 - 1.0, 0.45 * 0.5878);
            let rho = x.hypot(y);
            (rho * angle.cos() - 1.0) * dy - rho * angle.sin() * dx
        }
        _ => {
            let square = (ax + ay - 0.8) / 1.414;
            square.min((ax - 0.4).hypot(y + 0.4) - 0.8 / 1.414)
        }
    }
}

/// What a shape of radius 1 spans: left, right, top, bottom.
const EXTENT: [[f32; 4]; 7] = [
    [-1.0, 1.0, -1.0, 1.0],
    [-0.86, 0.86, -0.86, 0.86],
    [-1.0, 1.0, -1.0, 0.8],
    [-1.0, 1.0, -1.0, 1.0],
    [-0.95, 0.95, -0.95, 0.95],
    [-0.951, 0.951, -1.0, 0.809],
    [-0.966, 0.966, -0.966, 0.8],
];

fn template(shape: usize) -> Mask {
    let [left, right, top, bottom] = EXTENT[shape];
    let place = |low: f32, high: f32, i: usize| low + (high - low) * (i as f32 + 0.5) / GRID as f32;
    Mask::new(GRID, GRID, |x, y| distance(shape, place(left, right, x), place(top, bottom, y)) < 0.0).filled()
}

/// The ground's colour (that of most of the border) and the areas on it, of an RGB picture.
pub(super) fn areas(rgb: &[u8], width: usize, height: usize) -> (usize, Vec<Area>) {
    let nearest = |pixel: &[u8]| {
        let far =
            |colour: &[i32; 3]| -> i32 { colour.iter().zip(pixel).map(|(a, b)| (a - i32::from(*b)).pow(2)).sum() };
        (0..PALETTE.len()).min_by_key(|i| far(&PALETTE[*i])).unwrap_or(0)
    };
    let colours: Vec<usize> = rgb.chunks_exact(3).map(nearest).collect();
    let border = |i: &usize| [0, width - 1].contains(&(i % width)) || [0, height - 1].contains(&(i / width));
    let mut votes = [0; PALETTE.len()];
    (0..colours.len()).filter(border).for_each(|i| votes[colours[i]] += 1);
    let ground = (0..votes.len()).max_by_key(|i| votes[*i]).unwrap_or(0);

    let mut label = vec![usize::MAX; colours.len()];
    let mut found = Vec::new();
    let templates: Vec<Mask> = (0..SHAPES.len()).map(template).collect();
    for start in 0..colours.len() {
        if label[start] != usize::MAX || colours[start] == ground {
            continue;
        }
        let mut open = vec![start];
        label[start] = start;
        while let Some(i) = open.pop() {
            let (x, y) = (i % width, i / width);
            let near = [(x > 0).then(|| i - 1), (x + 1 < width).then_some(i + 1)];
            let far = [(y > 0).then(|| i - width), (y + 1 < height).then_some(i + width)];
            for next in near.into_iter().chain(far).flatten() {
                if label[next] == usize::MAX && colours[next] == colours[start] {
                    label[next] = start;
                    open.push(next);
                }
            }
        }
        let mask = Mask::new(width, height, |x, y| label[y * width + x] == start);
        if solid(&mask) >= SOLID {
            found.push(area(&mask.filled(), colours[start], &templates));
        }
    }
    (ground, found)
}

fn solid(mask: &Mask) -> usize {
    let inside = |x: usize, y: usize| {
        let (xs, ys) = (x - REACH..=x + REACH, y - REACH..=y + REACH);
        ys.into_iter().all(|y| xs.clone().all(|x| mask.at(x, y)))
    };
    let rows = REACH..mask.height - REACH;
    rows.map(|y| (REACH..mask.width - REACH).filter(|x| inside(*x, y)).count()).sum()
}

fn area(mask: &Mask, colour: usize, templates: &[Mask]) -> Area {
    let set = || (0..mask.bits.len()).filter(|i| mask.bits[*i]).map(|i| (i % mask.width, i / mask.width));
    let span = |axis: fn((usize, usize)) -> usize| {
        set().map(axis).fold((usize::MAX, 0), |(low, high), v| (low.min(v), high.max(v + 1)))
    };
    let ((left, right), (top, bottom)) = (span(|p| p.0), span(|p| p.1));
    let pick = |low: usize, high: usize, i: usize| low + (2 * i + 1) * (high - low) / (2 * GRID);
    let small = Mask::new(GRID, GRID, |x, y| mask.at(pick(left, right, x), pick(top, bottom, y)));
    let overlap = |template: &Mask| {
        let both = small.bits.iter().zip(&template.bits);
        let (and, or) =
            both.fold((0, 0), |(and, or), (a, b)| (and + usize::from(*a && *b), or + usize::from(*a || *b)));
        and as f64 / or as f64
    };
    let better = |a: &usize, b: &usize| overlap(&templates[*a]).total_cmp(&overlap(&templates[*b]));
    let shape = (0..templates.len()).max_by(better).unwrap_or(0);
    Area { colour, shape, left, right, top, bottom }
}

#[test]
fn shapes_and_colours_are_told_apart() {
    for (shape, name) in SHAPES.iter().enumerate() {
        for (colour, rgb) in PALETTE.iter().enumerate().take(10) {
            let draw = |i: usize| {
                let at = |v: usize| (v as f32 + 0.5 - 32.0) / 17.0;
                let inside = distance(shape, at(i % 64), at(i / 64)) < 0.0;
                let [r, g, b] = if inside { *rgb } else { PALETTE[10] };
                [r as u8, g as u8, b as u8]
            };
            let picture: Vec<u8> = (0..64 * 64).flat_map(draw).collect();
            let (ground, found) = areas(&picture, 64, 64);
            let [only] = found[..] else { panic!("{name}: {found:?}") };
            assert_eq!((ground, only.colour, only.shape), (10, colour, shape), "{name}: {only:?}");
        }
    }
}
