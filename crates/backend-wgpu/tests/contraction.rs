//! No kernel leaves a compiler a choice between `a * b + c` in two roundings and in one: where it would choose one in this kernel
//! and the other in that one, a row would have other last digits in one plan than in another.
//!
//! WGSL cannot forbid it. So no product or quotient of floats may reach an addition or subtraction through anything that a compiler
//! looks through: selections, vectors, variables, calls. What goes through memory that threads share is a number like any other. An
//! `fma` that adds nothing is a product too; this test sees it where zero is written beside it, not where a chain of sums that
//! begins with zero has one link.

use naga::{
    BinaryOperator, Block, Expression, Function, Handle, Literal, MathFunction, Module, ScalarKind, Statement,
    TypeInner, UnaryOperator,
    valid::{Capabilities, FunctionInfo, ModuleInfo, ValidationFlags, Validator},
};
use std::collections::{HashMap, HashSet};

/// What functions take and give that may be a product.
#[derive(Default, PartialEq, Clone)]
struct Flow {
    /// Arguments, and what pointers among them point to.
    arguments: HashSet<(Handle<Function>, u32)>,
    /// Pointed to by such arguments once the function has run.
    written: HashSet<(Handle<Function>, u32)>,
    results: HashSet<Handle<Function>>,
}

/// One function under way.
struct Walk<'a> {
    module: &'a Module,
    info: &'a FunctionInfo,
    function: &'a Function,
    handle: Option<Handle<Function>>,
    products: HashSet<Handle<Expression>>,
    variables: HashSet<Handle<naga::LocalVariable>>,
    flow: &'a mut Flow,
    found: Vec<String>,
    text: &'a str,
}

fn is_float(module: &Module, inner: &TypeInner) -> bool {
    match *inner {
        TypeInner::Scalar(scalar) | TypeInner::Vector { scalar, .. } => scalar.kind == ScalarKind::Float,
        TypeInner::Matrix { .. } => true,
        TypeInner::Array { base, .. } => is_float(module, &module.types[base].inner),
        _ => false,
    }
}

impl Walk<'_> {
    fn floats(&self, expression: Handle<Expression>) -> bool {
        is_float(self.module, self.info[expression].ty.inner_with(&self.module.types))
    }

    /// The variable or argument that a pointer leads into, if it is a thread's own.
    fn root(&self, pointer: Handle<Expression>) -> Handle<Expression> {
        match self.function.expressions[pointer] {
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => self.root(base),
            _ => pointer,
        }
    }

    fn holds(&self, pointer: Handle<Expression>) -> bool {
        match self.function.expressions[self.root(pointer)] {
            Expression::LocalVariable(variable) => self.variables.contains(&variable),
            Expression::FunctionArgument(i) => self
                .handle
                .is_some_and(|f| self.flow.arguments.contains(&(f, i)) || self.flow.written.contains(&(f, i))),
            _ => false,
        }
    }

    fn taint(&mut self, pointer: Handle<Expression>) {
        match self.function.expressions[self.root(pointer)] {
            Expression::LocalVariable(variable) => {
                self.variables.insert(variable);
            }
            Expression::FunctionArgument(i) => {
                if let Some(f) = self.handle {
                    self.flow.written.insert((f, i));
                }
            }
            _ => {}
        }
    }

    fn is_product(&self, e: Handle<Expression>) -> bool {
        self.products.contains(&e)
    }

    /// Whether a compiler can see that something is zero.
    fn is_zero(&self, e: Handle<Expression>) -> bool {
        match self.function.expressions[e] {
            Expression::Literal(literal) => literal == Literal::F32(0.0),
            Expression::ZeroValue(_) => true,
            Expression::Splat { value, .. } => self.is_zero(value),
            Expression::Compose { ref components, .. } => components.iter().all(|c| self.is_zero(*c)),
            _ => false,
        }
    }

    /// Whether an expression may be a product, and what is wrong with it.
    fn look(&mut self, e: Handle<Expression>) {
        let sums = |op: BinaryOperator| matches!(op, BinaryOperator::Add | BinaryOperator::Subtract);
        let is_product = match self.function.expressions[e] {
            Expression::Binary { op, left, right } if sums(op) && self.floats(e) => {
                if self.is_product(left) || self.is_product(right) {
                    self.complain(e);
                }
                false
            }
            Expression::Binary { op: BinaryOperator::Multiply | BinaryOperator::Divide, .. } => self.floats(e),
            // Products with sums inside, in an order of the device's own.
            Expression::Math { fun, arg2, .. } if self.floats(e) => {
                use MathFunction as F;
                if matches!(fun, F::Dot | F::Length | F::Distance | F::Mix | F::Cross | F::Normalize | F::SmoothStep) {
                    self.complain(e);
                }
                fun == F::Fma && arg2.is_some_and(|addend| self.is_zero(addend))
            }
            Expression::Load { pointer } => self.holds(pointer),
            Expression::FunctionArgument(i) => self.handle.is_some_and(|f| self.flow.arguments.contains(&(f, i))),
            Expression::CallResult(f) => self.flow.results.contains(&f),
            Expression::Compose { ref components, .. } => components.iter().any(|c| self.is_product(*c)),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => self.is_product(base),
            Expression::Splat { value, .. } => self.is_product(value),
            Expression::Swizzle { vector, .. } => self.is_product(vector),
            Expression::Unary { op: UnaryOperator::Negate, expr } => self.is_product(expr),
            Expression::Select { accept, reject, .. } => self.is_product(accept) || self.is_product(reject),
            _ => false,
        };
        if is_product {
            self.products.insert(e);
        }
    }

    fn complain(&mut self, e: Handle<Expression>) {
        let span = self.function.expressions.get_span(e).to_range().unwrap_or(0..0);
        let line = self.text[..span.start].rfind('\n').map_or(0, |at| at + 1);
        let end = self.text[span.end..].find('\n').map_or(self.text.len(), |at| at + span.end);
        let name = self.function.name.clone().unwrap_or_default();
        self.found.push(format!("{name}: {}", self.text[line..end].trim()));
    }

    fn block(&mut self, block: &Block) {
        for statement in block {
            match statement {
                Statement::Emit(range) => range.clone().for_each(|e| self.look(e)),
                Statement::Block(block) => self.block(block),
                Statement::If { accept, reject, .. } => {
                    self.block(accept);
                    self.block(reject);
                }
                Statement::Switch { cases, .. } => cases.iter().for_each(|case| self.block(&case.body)),
                Statement::Loop { body, continuing, .. } => {
                    self.block(body);
                    self.block(continuing);
                }
                Statement::Return { value: Some(value) } => {
                    if let Some(f) = self.handle.filter(|_| self.is_product(*value)) {
                        self.flow.results.insert(f);
                    }
                }
                Statement::Store { pointer, value } if self.is_product(*value) => self.taint(*pointer),
                Statement::Call { function, arguments, result } => {
                    for (i, argument) in arguments.iter().enumerate() {
                        let key = (*function, i as u32);
                        let points = matches!(
                            self.info[*argument].ty.inner_with(&self.module.types),
                            TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. }
                        );
                        if self.is_product(*argument) || (points && self.holds(*argument)) {
                            self.flow.arguments.insert(key);
                        }
                        if points && self.flow.written.contains(&key) {
                            self.taint(*argument);
                        }
                    }
                    if let Some(result) = result {
                        self.look(*result);
                    }
                }
                _ => {}
            }
        }
    }
}

/// Places where a product may reach an addition.
fn contractions(module: &Module, info: &ModuleInfo, text: &str) -> Vec<String> {
    let mut flow = Flow::default();
    // Variables are kept from pass to pass, for loops.
    let mut variables: HashMap<Option<Handle<Function>>, HashSet<Handle<naga::LocalVariable>>> = HashMap::new();
    loop {
        let before = (flow.clone(), variables.clone());
        let mut found = Vec::new();
        let functions = module.functions.iter().map(|(handle, function)| (Some(handle), function, &info[handle]));
        let entries = module.entry_points.iter().enumerate().map(|(i, e)| (None, &e.function, info.get_entry_point(i)));
        for (handle, function, info) in functions.chain(entries) {
            let mut walk = Walk {
                module,
                info,
                function,
                handle,
                products: HashSet::new(),
                variables: variables.remove(&handle).unwrap_or_default(),
                flow: &mut flow,
                found: Vec::new(),
                text,
            };
            // Arguments are emitted by no statement.
            let arguments = function.expressions.iter().filter(|(_, e)| matches!(e, Expression::FunctionArgument(_)));
            arguments.for_each(|(e, _)| walk.look(e));
            walk.block(&function.body);
            found.append(&mut walk.found);
            variables.insert(handle, walk.variables);
        }
        if before == (flow.clone(), variables.clone()) {
            return found;
        }
    }
}

fn check(text: &str) -> Vec<String> {
    let module = naga::front::wgsl::parse_str(text).unwrap_or_else(|error| panic!("{}", error.emit_to_string(text)));
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::SHADER_FLOAT16_IN_FLOAT32);
    let info = validator.validate(&module).unwrap_or_else(|error| panic!("{}", error.emit_to_string(text)));
    contractions(&module, &info, text)
}

#[test]
fn products_that_reach_a_sum_are_found() {
    let found = |body: &str| {
        let text = format!(
            "@group(0) @binding(0) var<storage, read_write> a: array<f32>;
            var<workgroup> shared_: array<f32, 64>;
            fn doubled(x: f32) -> f32 {{ return 2.0 * x; }}
            fn plus(x: f32) -> f32 {{ return x + 1.0; }}
            fn put(to: ptr<function, f32>, x: f32) {{ *to = x * x; }}
            @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) t: u32) {{ {body} }}"
        );
        !check(&text).is_empty()
    };
    for wrong in [
        "a[0] = a[1] * a[2] + a[3];",
        "a[0] = a[1] - a[2] / a[3];",
        "var y = a[1] * a[2]; if (t > 3u) { y = 1.0; } a[0] = y + a[3];",
        "var y = 0.0; for (var i = 0u; i < 3u; i++) { a[0] = y + a[3]; y = a[1] * a[2]; }",
        "a[0] = doubled(a[1]) + a[3];",
        "a[0] = plus(a[1] * a[2]);",
        "var y = 0.0; put(&y, a[1]); a[0] = y + a[3];",
        "let v = vec4<f32>(a[0]) * a[1]; a[0] = v.x + v.y;",
        "a[0] = select(-(a[1] * a[2]), a[3], t > 3u) + a[4];",
        "a[0] = fma(a[1], a[2], 0.0) + a[3];",
        "a[0] = dot(vec2<f32>(a[1], a[2]), vec2<f32>(a[3], a[4]));",
    ] {
        assert!(found(wrong), "{wrong}");
    }
    for right in [
        "a[0] = fma(a[1], a[2], a[3]);",
        "a[0] = fma(a[1] * a[2], a[3], a[4] * a[5]);",
        "a[0] = a[1] * (a[2] + a[3]);",
        "shared_[t] = a[1] * a[2]; workgroupBarrier(); a[0] = shared_[0] + shared_[1];",
        "a[t * 3u + 1u] = f32(t * 5u + 1u);",
    ] {
        assert!(!found(right), "{right}");
    }
}

#[test]
fn no_product_of_floats_reaches_a_sum() {
    let mut places: HashMap<String, String> = HashMap::new();
    for (name, text) in onebit_backend_wgpu::shaders::every() {
        for place in check(&text) {
            places.entry(place).or_insert_with(|| name.clone());
        }
    }
    let mut lines: Vec<String> = places.into_iter().map(|(place, name)| format!("{place}    [{name}]")).collect();
    lines.sort();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}
