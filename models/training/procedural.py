"""The procedural part of the corpus: sums with working, reading questions, tool dialogues, JSON answers, small talk, small
instruction following. Own work. A document is a list of (text, in_loss) segments in the chat format of the pack.

    python procedural.py KIND N SEED       KIND in math|read|tool|json|talk|task|mix; prints documents
Held out for tests: operand pairs with hash % 16 == 0, the names HOLD_NAMES, the tools HOLD_TOOLS (kind 'test' uses only these)."""
import json
import random
import sys



R = random.Random()
HELD = False  # True: draw only held-out items


def P(*a):
    return a[int(R.random() * len(a))]


def chance(p):
    return R.random() < p


FIRST = "Mia Lily Anna Zoe Nora Ella Ruby Ada Clara Ivy Tess Maya Lena Sara Rosa June Amara Priya Yuki Leila Emma Olivia Sophie Julia Hannah Alice Grace Eva Nina Paula Irene Marta Carmen Ines Fatima Aisha Mei Ling Hana Ingrid Freya Astrid Elif Zeynep Dana Kate Laura Megan Molly Beth Tom Ben Max Leo Sam Finn Jack Noah Omar Ravi Luca Theo Eli Kofi Hugo Milo Oscar Jonah Ken Pablo Peter Paul Mark David Daniel Martin Felix Simon Anton Viktor Ivan Diego Carlos Jorge Mario Karim Yusuf Ali Kwame Tariq Arjun Sanjay Hiro Kenji Chen Wei Lars Erik Sven Nils Henry George Arthur Walter Frank Roy".split()
GIRLS = set(FIRST[:52])
HOLD_NAMES = "Bruno Greta Matilda Otis Selma Hector Wanda Igor Petra Ezra".split()
HOLD_GIRLS = {"Greta", "Matilda", "Selma", "Wanda", "Petra"}
CITY = "Paris Rome Berlin Tokyo Cairo Lima Oslo Dublin Madrid Vienna Nairobi Sydney London Lisbon Prague Athens Boston Chicago Toronto Havana Warsaw Zurich Milan Geneva Delhi Mumbai Seoul Beijing Bangkok Hanoi Istanbul Ankara Accra Lagos Tunis Quito Bogota Santiago Denver Dallas Seattle Miami Helsinki Stockholm Copenhagen Brussels Amsterdam Munich Hamburg Venice".split()
JOBS = "teacher doctor nurse baker farmer pilot painter writer singer carpenter gardener cook driver engineer lawyer dentist librarian photographer musician plumber tailor waiter sailor builder programmer scientist".split()
PETS = "dog cat rabbit parrot hamster goldfish turtle pony canary lizard goat mouse".split()
COLORS = "red blue green yellow white black brown purple orange pink gray silver golden".split()
FOODS = "pizza soup bread rice pasta salad cheese apples pears cake fish beans pancakes cookies tomatoes noodles carrots grapes chocolate mushrooms".split()
HOBBY = "chess painting swimming reading singing dancing fishing running cooking drawing cycling gardening hiking sailing skating knitting climbing photography tennis pottery".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
ITEMS = "apples pencils shells stickers marbles coins books eggs cards buttons stamps cookies balloons flowers stones tickets bottles oranges nuts candles plates cups keys toys leaves beads photos boxes pears lemons".split()
OBJ = "key book map lamp letter ring hat bag clock cup knife phone coat umbrella ball bottle basket camera scarf wallet notebook ticket flute pen shoe blanket bell ladder bucket mirror".split()
WHERE = "under the bed|on the table|in the drawer|behind the door|on the shelf|in the kitchen|in the garden|next to the window|inside the box|under the chair|in the car|on the roof|behind the sofa|in the basket|near the gate|in the cellar|on the balcony|in the hall|under the tree|in the closet".split("|")
TIMES = "seven o'clock|eight o'clock|nine o'clock|ten o'clock|noon|one o'clock|two o'clock|three o'clock|four o'clock|five o'clock|six o'clock|half past eight|half past nine|half past two".split("|")
VEH = "train bus car bicycle boat plane taxi tram".split()
ADJ = "old new small large heavy beautiful broken simple strange expensive cheap wooden".split()


def cap(t):
    return t[0].upper() + t[1:]


def an(w):
    return ("an " if w[0] in "aeiou" else "a ") + w


SYL = "ba be bi bo da de di do fa fe ga go ha he ka ke ki ko la le li lo ma me mi mo na ne ni no pa pe pi ra re ri ro sa se si so ta te ti to va ve vi wa we ya yo za zo bra dri gra kla kri pre sto tri".split()
TAIL = ["", "", "n", "r", "s", "l", "m", "x", "nd", "rt", "k"]


def name(*used):
    """half from the list, half made up, so that names are copied and not recalled"""
    import toolspecs

    while True:
        if HELD:
            n = P(*HOLD_NAMES)
        elif chance(0.5):
            n = (("".join(P(*SYL) for _ in range(P(2, 2, 3))) + P(*TAIL)) if chance(0.5) else toolspecs.word(P(1, 2, 2))).capitalize()
            if n in HOLD_NAMES:
                continue
        else:
            n = P(*FIRST)
        if n not in used:
            return n


def he(n):
    if n in GIRLS or n in HOLD_GIRLS:
        return "she"
    return "he" if n in FIRST or n in HOLD_NAMES else ("she" if n[-1] in "aei" else "he")


def his(n):
    return "her" if he(n) == "she" else "his"


def pair(lo, hi, lo2=None, hi2=None):
    """operands; the held-out ones are those with hash % 16 == 0"""
    lo2, hi2 = lo if lo2 is None else lo2, hi if hi2 is None else hi2
    while True:
        a, b = R.randint(lo, hi), R.randint(lo2, hi2)
        if ((a * 7919 + b * 104729) % 16 == 0) == HELD:
            return a, b


# ---------------------------------------------------------------- chat form
SYS = [None] * 7 + ["You are a helpful assistant.", "You are a helpful assistant.", "Answer briefly.", "You are a friendly assistant.", "You are a careful assistant. Be exact."]


def chat(turns, system=None, think=None):
    """turns [(role, text)]; think: working to put in the think block of the last assistant turn"""
    out = []
    if system:
        out.append((f"<|im_start|>system\n{system}<|im_end|>\n", False))
    last = max(i for i, t in enumerate(turns) if t[0] == "assistant")
    for i, (r, t) in enumerate(turns):
        if r == "assistant":
            if think and i == last:
                out.append(("<|im_start|>assistant\n<think>\n", False))
                out.append((f"{think}\n</think>\n\n{t}<|im_end|>", True))
            else:
                out.append(("<|im_start|>assistant\n<think>\n\n</think>\n\n", False))
                out.append((f"{t}<|im_end|>", True))
            out.append(("\n" if i + 1 < len(turns) else "<|endoftext|>", i + 1 == len(turns)))
        else:
            out.append((f"<|im_start|>{r}\n{t}<|im_end|>\n", False))
    return out


# ---------------------------------------------------------------- sums
def add_work(a, b):
    """a + b by tens and ones"""
    if a < 10 or b < 10 or a + b < 21:
        return f"{a} + {b} = {a + b}"
    ta, oa, tb, ob = a // 10 * 10, a % 10, b // 10 * 10, b % 10
    return f"{ta} + {tb} = {ta + tb}. {oa} + {ob} = {oa + ob}. {ta + tb} + {oa + ob} = {a + b}"


def sub_work(a, b):
    if b < 10 or a < 20:
        return f"{a} - {b} = {a - b}"
    tb, ob = b // 10 * 10, b % 10
    return f"{a} - {tb} = {a - tb}. {a - tb} - {ob} = {a - b}" if ob else f"{a} - {b} = {a - b}"


def mul_work(a, b):
    if a <= 10 or b > 10:
        return f"{a} * {b} = {a * b}"
    t, o = a // 10 * 10, a % 10
    return f"{t} * {b} = {t * b}. {o} * {b} = {o * b}. {t * b} + {o * b} = {a * b}" if o else f"{a} * {b} = {a * b}"


def k_math(top=1.0):
    k = R.random() * top
    if k < 0.38:  # bare sums
        op = P("+", "+", "-", "-", "*", "*", "/")
        if op == "+":
            a, b = pair(1, P(9, 20, 99, 99))
            v, w = a + b, add_work(a, b)
        elif op == "-":
            a, b = pair(1, P(20, 99, 99))
            a, b = max(a, b), min(a, b)
            v, w = a - b, sub_work(a, b)
        elif op == "*":
            a, b = pair(2, 12) if chance(0.7) else pair(11, 49, 2, 9)
            v, w = a * b, mul_work(a, b)
        else:
            b, v = pair(2, 12)
            a = b * v
            w = f"{b} * {v} = {a}, so {a} / {b} = {v}"
        wd = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[op]
        q = P(f"What is {a} {op} {b}?", f"{a} {op} {b} =", f"{a} {op} {b}", f"Can you work out {a} {wd} {b}?", f"What is {a} {wd} {b}?", f"Calculate {a} {op} {b}.", f"How much is {a} {wd} {b}?", f"Please compute {a} {op} {b}.", f"What do you get if you take {a} {wd} {b}?", f"Solve {a} {op} {b}.", f"I need the result of {a} {wd} {b}.")
        m = R.random()
        if m < 0.35:
            return chat([("user", q)] + [("assistant", P(f"{a} {op} {b} = {v}", f"{a} {op} {b} = {v}.", f"The answer is {v}.", f"{cap(str(a))} {wd} {b} is {v}."))], P(*SYS))
        if m < 0.6:
            return chat([("user", q), ("assistant", P(f"{a} {op} {b} = {v}", f"The answer is {v}."))], P(*SYS), think=w + ".")
        return chat([("user", q), ("assistant", P(f"{w}. The answer is {v}.", f"{w}. So {a} {op} {b} = {v}.", f"Step by step: {w}. The answer is {v}."))], P(*SYS))
    n = name()
    m = name(n)
    th = P(*ITEMS)
    if k < 0.72:  # stories of sums
        t = R.randrange(10)
        if t < 3:
            a, b = pair(2, 60)
            q = P(f"{n} has {a} {th}. {m} gives {n} {b} more. How many {th} does {n} have now?", f"{n} found {a} {th} in the morning and {b} {th} in the evening. How many {th} did {n} find in total?", f"There are {a} {th} in one box and {b} {th} in another box. How many {th} are there altogether?", f"{n} bought {a} {th}. The next day {he(n)} bought {b} more. How many {th} is that?", f"{n} has {a} {th} and {m} has {b} {th}. How many do they have together?", f"A shop sold {a} {th} on {P(*DAYS)} and {b} on the day after. How many {th} did it sell?")
            w, v = add_work(a, b), a + b
            f = P(f"There are {v} {th}.", f"The answer is {v} {th}.", f"That makes {v} {th}.")
        elif t < 6:
            a, b = pair(2, 80)
            a, b = max(a, b) + 1, min(a, b)
            q = P(f"There are {a} {th} in a box. {n} takes {b} of them. How many are left?", f"{n} has {a} {th} and gives {b} to {m}. How many {th} does {n} have left?", f"{n} had {a} {th} but lost {b}. How many {th} are left?", f"A shop has {a} {th}. It sells {b} of them. How many {th} remain?", f"{n} has {a} {th}. {m} has {b} {th}. How many more {th} does {n} have than {m}?", f"{n} needs {a} {th} and already has {b}. How many more {th} does {he(n)} need?")
            w, v = sub_work(a, b), a - b
            f = P(f"{v} {th} are left.", f"The answer is {v} {th}.", f"The answer is {v}.") if "more" not in q else f"The answer is {v}."
        elif t < 8:
            a, b = pair(2, 12)
            q = P(f"{n} buys {a} bags with {b} {th} in each bag. How many {th} is that?", f"There are {a} boxes. Each box holds {b} {th}. How many {th} are there?", f"One ticket costs {b} dollars. How much do {a} tickets cost?", f"{n} reads {b} pages every day. How many pages does {he(n)} read in {a} days?", f"{a} children have {b} {th} each. How many {th} do they have together?", f"A table has {b} rows with {a} {th} each. How many {th} is that?")
            w, v = f"{a} * {b} = {a * b}", a * b
            f = P(f"The answer is {v}.", f"That is {v} in total.")
        elif t == 8:
            b, v = pair(2, 10)
            a = b * v
            q = P(f"{n} shares {a} {th} equally among {b} friends. How many {th} does each friend get?", f"{a} {th} are put into {b} boxes, the same number in each box. How many {th} are in each box?", f"{b} tickets cost {a} dollars together. How much does one ticket cost?")
            w = f"{a} / {b} = {v}"
            f = P(f"The answer is {v}.", f"Each one gets {v}.") if "dollars" not in q else f"One ticket costs {v} dollars."
        else:
            a, b = pair(2, 10)
            c = R.randint(1, a * b - 1)
            if chance(0.5):
                q, w, v = f"{n} buys {a} bags with {b} {th} in each bag and then gives away {c}. How many {th} are left?", f"{a} * {b} = {a * b}. {a * b} - {c} = {a * b - c}", a * b - c
            else:
                q, w, v = f"{n} has {c} {th}. {m} gives {his(n) if False else n} {a} bags with {b} {th} each. How many {th} does {n} have now?", f"{a} * {b} = {a * b}. {c} + {a * b} = {c + a * b}", c + a * b
            f = f"The answer is {v} {th}."
        if chance(0.25):
            return chat([("user", q), ("assistant", f)], P(*SYS), think=w + ".")
        return chat([("user", q), ("assistant", P(f"{w}. {f}", f"{w}. {f}", f"We calculate: {w}. {f}"))], P(*SYS))
    xs = R.sample(range(1, 100), R.randint(3, 6))
    s = ", ".join(map(str, xs))
    t = R.randrange(8)
    if t == 0:
        q, a = P(f"Sort these numbers from small to large: {s}", f"Put these numbers in order, smallest first: {s}"), ", ".join(map(str, sorted(xs)))
    elif t == 1:
        q, a = P(f"Which of these numbers is the largest: {s}?", f"What is the biggest number in this list: {s}?"), P(f"The largest number is {max(xs)}.", f"{max(xs)} is the largest.")
    elif t == 2:
        q, a = P(f"Which of these numbers is the smallest: {s}?", f"Find the smallest number: {s}."), f"The smallest number is {min(xs)}."
    elif t == 3:
        d, st = R.randint(1, 10), R.randint(1, 30)
        q, a = P(f"What comes next: {st}, {st + d}, {st + 2 * d}, {st + 3 * d}?", f"Continue the sequence: {st}, {st + d}, {st + 2 * d}, {st + 3 * d}, ..."), f"Each number is {d} more than the one before. {st + 3 * d} + {d} = {st + 4 * d}. The next number is {st + 4 * d}."
    elif t == 4:
        x = R.randint(1, 200)
        q, a = P(f"Is {x} even or odd?", f"Is the number {x} odd or even?"), f"{x} ends in {x % 10}, so it is {'even' if x % 2 == 0 else 'odd'}."
    elif t == 5:
        a_, b_ = pair(1, 99)
        if a_ == b_:
            b_ += 1
        q, a = P(f"Which is larger, {a_} or {b_}?", f"Which number is bigger: {a_} or {b_}?"), f"{max(a_, b_)} is larger than {min(a_, b_)}."
    elif t == 6:
        x = R.randint(2, 60)
        q, a = P((f"What is half of {2 * x}?", f"Half of {2 * x} is {x}."), (f"What is double {x}?", f"Double {x} is {2 * x}."), (f"What is the number after {x}?", f"The number after {x} is {x + 1}."), (f"What is the number before {x}?", f"The number before {x} is {x - 1}."))
    else:
        lo = R.randint(1, 20)
        hi = lo + R.randint(3, 9)
        q, a = f"Count from {lo} to {hi}.", ", ".join(map(str, range(lo, hi + 1))) + "."
    return chat([("user", q), ("assistant", a)], P(*SYS))


# ---------------------------------------------------------------- reading: small worlds of facts; each fact is (sentence, [(question, answer)])
def f_person():
    n, c, j, pt, col, fd, hb, age = name(), P(*CITY), P(*JOBS), P(*PETS), P(*COLORS), P(*FOODS), P(*HOBBY), R.randint(6, 80)
    h, s = cap(he(n)), his(n)
    pn = name(n)
    fs = [
        (P(f"{n} lives in {c}.", f"{n} comes from {c}.", f"{n}'s home is in {c}.", f"{n} has lived in {c} for many years."), [(P(f"Where does {n} live?", f"In which city does {n} live?", f"What city is {n} from?"), P(f"{n} lives in {c}.", f"{c}."))]),
        (P(f"{h} works as {an(j)}.", f"{h} is {an(j)}.", f"{n} earns {s} money as {an(j)}."), [(P(f"What is {n}'s job?", f"What does {n} do for work?", f"What work does {n} do?"), f"{n} is {an(j)}.")]),
        (P(f"{h} has {an(pt)} called {pn}.", f"{s.capitalize()} {pt} is called {pn}.", f"At home {he(n)} keeps {an(pt)}. Its name is {pn}."), [(P(f"What is the name of {n}'s {pt}?", f"What is the {pt} called?"), f"The {pt} is called {pn}."), (P(f"What pet does {n} have?", f"Which animal does {n} have?"), f"{n} has {an(pt)}.")]),
        (P(f"{s.capitalize()} favorite color is {col}.", f"{h} likes {col} more than any other color.", f"Everything {he(n)} buys is {col}."), [(P(f"What is {n}'s favorite color?", f"Which color does {n} like best?"), P(f"{n}'s favorite color is {col}.", f"{cap(col)}."))]),
        (P(f"{h} likes to eat {fd}.", f"{h} could eat {fd} every day.", f"For dinner {he(n)} often has {fd}."), [(P(f"What does {n} like to eat?", f"What food does {n} like?"), f"{n} likes {fd}.")]),
        (P(f"In {s} free time {he(n)} enjoys {hb}.", f"{s.capitalize()} hobby is {hb}.", f"On weekends {he(n)} spends hours on {hb}."), [(P(f"What is {n}'s hobby?", f"What does {n} do in {s} free time?"), f"{n}'s hobby is {hb}.")]),
        (P(f"{h} is {age} years old.", f"{h} turned {age} last {P(*MONTHS)}.", f"{n} is {age}."), [(P(f"How old is {n}?", f"What is {n}'s age?"), f"{n} is {age} years old.")]),
    ]
    first, rest = fs[0], fs[1:]
    R.shuffle(rest)
    return [first] + rest[: R.randint(2, 5)], [f"Who is {n}'s best friend?", f"What is {n}'s last name?", f"What car does {n} drive?", f"When did {n} get married?", f"What is the name of {n}'s sister?"]


def f_things():
    n = name()
    objs = R.sample(OBJ, R.randint(2, 4))
    pl = R.sample(WHERE, len(objs))
    fs = []
    for o, w in zip(objs, pl):
        c = P(*COLORS)
        fs.append((P(f"The {c} {o} is {w}.", f"{n} put the {c} {o} {w}.", f"There is {an(c)} {o} {w}.", f"{n} left {an(c)} {o} {w}."), [(P(f"Where is the {o}?", f"Where can I find the {o}?"), P(f"The {o} is {w}.", f"It is {w}.")), (f"What color is the {o}?", f"The {o} is {c}."), (f"What is {w}?", f"The {o} is {w}.")]))
    other = P(*[o for o in OBJ if o not in objs])
    return fs, [f"Where is the {other}?", f"What color is the {other}?"]


def f_trip():
    n = name()
    m = name(n)
    c, v, d, t, mth = P(*CITY), P(*VEH), P(*DAYS), P(*TIMES), P(*MONTHS)
    k, pay, o = R.randint(2, 14), R.randint(5, 90), P(*OBJ)
    fs = [
        (P(f"On {d} {n} travels to {c} by {v}.", f"{n} is going to {c} on {d}. {cap(he(n))} takes the {v}.", f"On {d} {n} took the {v} to {c}."), [(f"Where does {n} go?", f"{n} goes to {c}."), (P(f"How does {n} travel?", f"How does {n} get to {c}?"), f"{n} travels by {v}."), (P(f"On which day does {n} travel?", "What day is the trip?"), P(f"On {d}.", f"{n} travels on {d}."))]),
        (P(f"The {v} leaves at {t}.", f"{cap(he(n))} has to be ready at {t}, when the {v} leaves."), [(P(f"When does the {v} leave?", f"At what time does the {v} leave?"), f"The {v} leaves at {t}.")]),
        (P(f"{cap(he(n))} will stay for {k} days.", f"The trip lasts {k} days."), [(P(f"How long does {n} stay?", "How many days does the trip last?"), P(f"{cap(he(n))} stays for {k} days.", f"The trip lasts {k} days."))]),
        (P(f"The ticket costs {pay} dollars.", f"{cap(he(n))} paid {pay} dollars for the ticket."), [(P("How much does the ticket cost?", "What is the price of the ticket?"), f"The ticket costs {pay} dollars.")]),
        (P(f"{m} comes along.", f"{n} travels together with {m}.", f"{m} is waiting for {n} in {c}."), [("Who else is in the text?", f"{m} is also in the text.")]),
        (P(f"{n} must not forget {his(n)} {o}.", f"In {his(n)} suitcase there is {an(o)}."), [(P(f"What does {n} take along?", f"What is in {n}'s luggage?"), f"{n} takes {an(o)}.")]),
    ]
    return [fs[0]] + R.sample(fs[1:], R.randint(1, 4)), ["What is the name of the hotel?", f"What is the weather like in {c}?", f"Who is {n}'s doctor?"]


def f_shop():
    n = name()
    its = R.sample(ITEMS, R.randint(2, 4))
    pr = R.sample(range(1, 60), len(its))
    fs = [(P(f"{n} has a small shop in {P(*CITY)}.", f"{n} sells things at the market.", f"{n} runs a shop near the station."), [("Who has the shop?", f"{n} has the shop.")])]
    for i, p in zip(its, pr):
        fs.append((P(f"The {i} cost {p} dollars.", f"{cap(he(n))} sells {i} for {p} dollars.", f"You pay {p} dollars for the {i}."), [(P(f"How much do the {i} cost?", f"What is the price of the {i}?"), f"The {i} cost {p} dollars.")]))
    if len(its) > 1:
        hi, lo = its[pr.index(max(pr))], its[pr.index(min(pr))]
        fs[-1][1].append((P("Which thing is the most expensive?", "What costs the most?"), f"The {hi} cost the most."))
        fs[-1][1].append((P("Which thing is the cheapest?", "What costs the least?"), f"The {lo} cost the least."))
    other = P(*[i for i in ITEMS if i not in its])
    return fs, [f"How much do the {other} cost?", "When does the shop close?"]


def f_group():
    ns = R.sample(HOLD_NAMES if HELD else FIRST, 3)
    k = P("hobby", "food", "pet", "sport")
    vals = R.sample({"hobby": HOBBY, "food": FOODS, "pet": PETS, "sport": HOBBY}[k], 3)
    fs = []
    for n, v in zip(ns, vals):
        if k == "pet":
            fs.append((P(f"{n} has {an(v)}.", f"{n} owns {an(v)}."), [(f"Who has {an(v)}?", f"{n} has {an(v)}."), (f"Which animal does {n} have?", f"{n} has {an(v)}.")]))
        else:
            fs.append((P(f"{n} likes {v}.", f"{n} prefers {v}.", f"{n} is fond of {v}."), [(f"Who likes {v}?", f"{n} likes {v}."), (f"What does {n} like?", f"{n} likes {v}.")]))
    R.shuffle(fs)
    o = name(*ns)
    return fs, [f"What does {o} like?", f"How old is {ns[0]}?"]


FILL = ["The day was warm.", "Outside it was raining.", "Everyone was in a good mood.", "It was a quiet morning.", "Nothing else happened that day.", "The neighbors know this well.", "That is all there is to tell.", "Some people find this funny.", "It has been like this for years.", "The street was empty.", "A dog barked far away.", "The sun was about to set."]


def passage():
    fs, no = P(f_person, f_person, f_things, f_trip, f_shop, f_group)()
    sents = [f[0] for f in fs]
    if chance(0.4):
        sents.insert(R.randint(1, len(sents)), P(*FILL))
    if chance(0.15):
        f2, _ = P(f_things, f_group)()
        sents += [f[0] for f in f2]
        fs = fs + f2
    return " ".join(sents), fs, no


def k_read():
    text, fs, no = passage()
    qa = [P(*f[1]) for f in fs]
    R.shuffle(qa)
    if chance(0.15):
        qa.insert(0, (P(*no), P("The text does not say.", "The text does not say that.", "That is not in the text.")))
    q, a = qa[0]
    head = P(f"Read the text and answer the question.\n\n{text}\n\nQuestion: {q}", f"{text}\n\n{q}", f"Context: {text}\n\nUsing only the context, answer: {q}", f"Text: {text}\nQuestion: {q}", f"{text} {q}", f"Here is a text:\n\n{text}\n\n{q}", f"{q}\n\n{text}", f"Answer the question with the help of the text.\n\nText: {text}\n\nQuestion: {q}\nAnswer:")
    turns = [("user", head), ("assistant", a)]
    for q2, a2 in qa[1 : 1 + P(0, 0, 1, 2)]:
        turns += [("user", q2), ("assistant", a2)]
    if len(turns) == 2 and "not" not in a and chance(0.2):
        src = next((f[0] for f in fs if (q, a) in f[1]), None)
        if src:
            return chat(turns, P(*SYS), think=P(f'The text says: "{src}"', f'I look for the sentence about it: "{src}"'))
    return chat(turns, P(*SYS))


# ---------------------------------------------------------------- tools
def tool(n, desc, /, **props):
    return {"type": "function", "function": {"name": n, "description": desc, "parameters": {"type": "object", "properties": {k: {"type": t, "description": d} for k, (t, d) in props.items()}, "required": list(props)}}}


def t_weather():
    c, d, s = P(*CITY), R.randint(-8, 35), P("sunny", "cloudy", "rainy", "windy", "clear", "foggy", "snowy")
    return P(f"What is the weather in {c}?", f"Is it warm in {c} today?", f"How is the weather in {c} right now?", f"Do I need a coat in {c}?", f"Tell me the weather in {c}.", f"What's it like outside in {c}?"), {"city": c}, {"city": c, "temperature_c": d, "sky": s}, P(f"In {c} it is {d} degrees and {s}.", f"It is {s} in {c}, with {d} degrees.")


def t_time():
    c, h, m = P(*CITY), R.randint(0, 23), R.randint(0, 59)
    return P(f"What time is it in {c}?", f"Tell me the time in {c}.", f"Can you check the local time in {c}?"), {"city": c}, {"city": c, "time": f"{h:02d}:{m:02d}"}, P(f"It is {h:02d}:{m:02d} in {c}.", f"The time in {c} is {h:02d}:{m:02d}.")


def t_calc():
    a, b = pair(100, 9999, 11, 999)
    op = P("+", "-", "*")
    v = {"+": a + b, "-": a - b, "*": a * b}[op]
    w = {"+": "plus", "-": "minus", "*": "times"}[op]
    return P(f"What is {a} {op} {b}?", f"Calculate {a} {w} {b}.", f"Please work out {a} {op} {b}."), {"expression": f"{a} {op} {b}"}, {"result": v}, P(f"{a} {op} {b} = {v}", f"The result is {v}.")


def t_remind():
    x, t = P("call " + name(), "buy milk", "water the plants", "take the bread out", "feed the cat", "send the letter", "pay the rent", "lock the door", "pick up " + name(), "book a table"), f"{R.randint(6, 22)}:{P('00', '15', '30', '45')}"
    return P(f"Remind me to {x} at {t}.", f"Set a reminder at {t}: {x}.", f"At {t} I have to {x}. Please remind me."), {"text": x, "time": t}, {"ok": True}, P(f"I will remind you to {x} at {t}.", f"Done. The reminder is set for {t}.")


def t_search():
    x = P("the history of tea", "how bees make honey", "good bread recipes", "the tallest mountains", "old sailing ships", "learning to swim", "how bridges are built", "birds of the north", "the first computers", "simple garden plans", "train tickets to " + P(*CITY), "museums in " + P(*CITY))
    n = R.randint(2, 99)
    return P(f"Search for {x}.", f"Look up {x}.", f"Find something about {x}.", f"Can you search the web for {x}?"), {"query": x}, {"results": n, "first": cap(x)}, P(f"I found {n} results about {x}.", f"There are {n} results. The first one is \"{cap(x)}\".")


def t_draw():
    x = P(*[f"a {c} {o} {p}" for c, o, p in [(P(*COLORS), P("circle", "house", "boat", "tree", "star", "cat", "bird", "bridge"), P("on a hill", "under the moon", "by the sea", "in the rain", "at night", "in the snow"))]])
    return P(f"Draw {x}.", f"Make a picture of {x}.", f"Can you paint {x}?", f"I would like an image of {x}."), {"prompt": x}, {"file": "image.png"}, P(f"Here is a picture of {x}.", "The picture is ready.")


def t_light():
    r, s = P("kitchen", "bedroom", "hall", "garage", "bathroom", "living room", "office"), P("on", "off")
    return P(f"Turn {s} the light in the {r}.", f"Please switch the {r} light {s}.", f"Light {s} in the {r}, please."), {"room": r, "state": s}, {"ok": True}, P(f"The light in the {r} is {s}.", f"Done, the {r} light is {s}.")


def t_msg():
    n, x = name(), P("I am late", "dinner is ready", "happy birthday", "see you tomorrow", "the train is on time", "thank you for your help", "please call me back")
    return P(f"Send {n} a message: {x}.", f"Tell {n}: {x}.", f"Write to {n} that says: {x}."), {"to": n, "text": x}, {"sent": True}, P(f"I sent the message to {n}.", f"The message to {n} is sent.")


def t_conv():
    a = R.randint(1, 500)
    u, v = P(("USD", "EUR"), ("EUR", "JPY"), ("GBP", "USD"), ("CHF", "EUR"), ("SEK", "NOK"), ("CAD", "USD"))
    r = R.randint(1, 900)
    return P(f"Convert {a} {u} to {v}.", f"How much is {a} {u} in {v}?"), {"amount": a, "from": u, "to": v}, {"amount": r, "currency": v}, f"{a} {u} is {r} {v}."


def t_read():
    f = P("notes.txt", "todo.md", "list.txt", "plan.md", "letter.txt", "data.csv")
    x = P("buy bread and milk", "meeting at noon", "call the bank", "water the garden", "finish the report")
    return P(f"What is in {f}?", f"Open {f}.", f"Read the file {f} to me."), {"path": f}, {"content": x}, P(f"The file {f} says: {x}.", f"It says: {x}.")


def t_song():
    x = P("some jazz", "a piano piece", "rain sounds", "a slow song", "rock music", "folk songs", "a lullaby")
    return P(f"Play {x}.", f"I want to hear {x}.", f"Put on {x}, please."), {"query": x}, {"playing": True}, P(f"Now playing {x}.", f"Here is {x}.")


def t_dict():
    w = P(*(OBJ + PETS + JOBS))
    d = P("a thing that people use every day", "a word for something well known", "something with a long history")
    return P(f"Look up the word {w}.", f"What does the dictionary say about {w}?", f"Define {w} with the dictionary."), {"word": w}, {"word": w, "definition": d}, f"The dictionary says: {w}, {d}."


def t_stock():
    i, n = P(*ITEMS), R.randint(0, 400)
    return P(f"How many {i} do we have in stock?", f"Check the stock of {i}.", f"Are there any {i} left?"), {"item": i}, {"item": i, "count": n}, P(f"There are {n} {i} in stock.", f"We have {n} {i}.")


def t_book():
    c, d, n = P(*CITY), P(*DAYS), R.randint(1, 6)
    return P(f"Book a hotel in {c} for {n} people on {d}.", f"I need a room in {c} on {d} for {n}."), {"city": c, "day": d, "guests": n}, {"booking": R.randint(1000, 9999)}, P(f"Your hotel in {c} is booked for {d}.", f"Done. The room in {c} is booked.")


TOOLS = [
    (tool("get_weather", "Get the current weather for a city.", city=("string", "City name")), t_weather),
    (tool("get_time", "Get the local time of a city.", city=("string", "City name")), t_time),
    (tool("calculate", "Evaluate an arithmetic expression.", expression=("string", "The expression")), t_calc),
    (tool("set_reminder", "Set a reminder.", text=("string", "What to remember"), time=("string", "Time as HH:MM")), t_remind),
    (tool("web_search", "Search the web.", query=("string", "Search words")), t_search),
    (tool("generate_image", "Make an image from a description.", prompt=("string", "Description of the image")), t_draw),
    (tool("set_light", "Switch a light.", room=("string", "Room"), state=("string", "on or off")), t_light),
    (tool("send_message", "Send a text message.", to=("string", "Name of the person"), text=("string", "The message")), t_msg),
    (tool("convert_currency", "Convert money.", amount=("number", "Amount"), **{"from": ("string", "From currency")}, to=("string", "To currency")), t_conv),
    (tool("read_file", "Read a text file.", path=("string", "Path of the file")), t_read),
    (tool("play_music", "Play music.", query=("string", "What to play")), t_song),
    (tool("lookup_word", "Look up a word in a dictionary.", word=("string", "The word")), t_dict),
]
HOLD_TOOLS = [
    (tool("check_stock", "Count an item in the store.", item=("string", "Item name")), t_stock),
    (tool("book_hotel", "Book a hotel room.", city=("string", "City"), day=("string", "Day of the week"), guests=("integer", "Number of guests")), t_book),
]
SYN = {"get_weather": ["weather", "current_weather", "weather_lookup"], "get_time": ["clock", "local_time", "time_in"], "calculate": ["calculator", "eval_math", "compute"], "set_reminder": ["remind", "add_reminder"], "web_search": ["search", "search_web", "find"], "generate_image": ["draw", "image", "paint"], "set_light": ["light", "switch_light"], "send_message": ["message", "send_text"], "convert_currency": ["convert", "currency"], "read_file": ["open_file", "cat"], "play_music": ["music", "play"], "lookup_word": ["dictionary", "define"]}
# made-up tools: the name and the parameters must be copied from the list, not recalled
T_VERB = "open close start stop find order cancel check lock unlock move print count clean share rent repair track water feed charge call measure sort save load rate scan empty fill".split()
T_NOUN = "gate door window pump oven heater printer robot garden tank bike engine report table parcel ticket recipe photo film camera lamp fan drone elevator fridge bus room seat song playlist invoice account".split()
T_PAR = {
    "name": lambda: name(), "city": lambda: P(*CITY), "day": lambda: P(*DAYS), "color": lambda: P(*COLORS), "count": lambda: R.randint(1, 99), "minutes": lambda: R.randint(1, 90),
    "room": lambda: P("kitchen", "bedroom", "hall", "garage", "office", "cellar"), "size": lambda: P("small", "medium", "large"), "item": lambda: P(*ITEMS), "level": lambda: R.randint(1, 10),
    "time": lambda: f"{R.randint(6, 22)}:{P('00', '15', '30', '45')}", "id": lambda: R.randint(100, 9999), "month": lambda: P(*MONTHS), "food": lambda: P(*FOODS), "speed": lambda: P("slow", "normal", "fast"),
}
T_SAY = {"name": "for {}", "city": "in {}", "day": "on {}", "color": "in the color {}", "count": "{} times", "minutes": "for {} minutes", "room": "in the {}", "size": "size {}", "item": "with {}", "level": "at level {}", "time": "at {}", "id": "with number {}", "month": "in {}", "food": "with {}", "speed": "at {} speed"}


def random_tool():
    v, n = P(*T_VERB), P(*T_NOUN)
    ps = R.sample(list(T_PAR), P(1, 1, 2, 2, 3))
    style = P(f"{v}_{n}", f"{v}_{n}", f"{n}_{v}", f"{v}{n.capitalize()}", f"{n}.{v}", f"do_{v}_{n}", f"{v}_the_{n}")
    pn = {p: P(p, p, p, f"{n}_{p}", p.upper() if chance(0.1) else p) for p in ps}
    t = tool(style, P(f"{cap(v)} the {n}.", f"{cap(v)} a {n}.", f"Use this to {v} a {n}."), **{pn[p]: ("integer" if p in ("count", "minutes", "level", "id") else "string", P(cap(p), f"The {p}", f"{cap(p)} of the {n}")) for p in ps})

    def make():
        vals = {p: T_PAR[p]() for p in ps}
        said = " ".join(T_SAY[p].format(x) for p, x in vals.items())
        ok = P({"ok": True}, {"status": "done"}, {"result": "ok"}, {"id": R.randint(10, 999)}, {"error": f"{n} not found"})
        q = P(f"{cap(v)} the {n} {said}.", f"Please {v} the {n} {said}.", f"Can you {v} the {n} {said}?", f"I want you to {v} the {n} {said}.", f"{cap(v)} a {n} {said}, please.", f"Could you {v} my {n} {said}?")
        a = f"That did not work: the {n} was not found." if "error" in ok else P(f"Done. The {n} is taken care of.", f"All right, I did that with the {n}.", f"The {n} request is done.", f"Done, number {ok['id']}." if "id" in ok else "Done.")
        return q, {pn[p]: x for p, x in vals.items()}, ok, a

    return t, make


def made_up_tool():
    """name, parameters and values all made up: only copying helps"""
    import toolspecs as S

    w = S.word
    ps = list({w(P(1, 2)): None for _ in range(P(1, 1, 2, 2, 3))})
    n = P(w(), f"{w()}_{w()}", f"{P(*T_VERB)}_{w()}", f"{w()}_{P(*T_NOUN)}", w(2) + w(2).capitalize(), f"{w()}.{w()}", f"{w()}-{w()}")
    ty = {p: P("string", "string", "integer") for p in ps}
    t = tool(n, P(f"{cap(w())} a {w()}.", f"{cap(P(*T_VERB))} the {w()}.", f"Does {w()} work.", "A tool."), **{p: (ty[p], P(f"The {p}", cap(p), "A value")) for p in ps})

    def make():
        v = {p: R.randint(0, 9999) if ty[p] == "integer" else P(w(), S.code(), name(), S.place(), S.phrase(), S.clock(), P(*COLORS)) for p in ps}
        said = P(", ".join(f"{p} {x}" for p, x in v.items()), " and ".join(f"{p} = {x}" for p, x in v.items()), ", ".join(f"{p}: {x}" for p, x in v.items()), " and ".join(f"{x} as {p}" for p, x in v.items()))
        q = P(f"Use {n} with {said}.", f"Call {n} with {said}.", f"Please run {n}: {said}.", f"I need {n} with {said}.", f"Do {n} for me, {said}.")
        r = P(w(), S.code(), R.randint(1, 999))
        return q, v, P({"result": r}, {"value": r}), P(f"The result is {r}.", f"{cap(n)} says {r}.", f"It returned {r}.")

    return t, make


T_HEAD = "# Tools\n\nYou can call these functions:\n\n<tools>\n"
T_TAIL = "\n</tools>\n\nTo call a function, reply with only this:\n\n<tool_call>\n<function=NAME>\n<parameter=PARAMETER>\nvalue\n</parameter>\n</function>\n</tool_call>\n\nIf no function fits, answer without one."


def call_text(n, args):
    return f"<tool_call>\n<function={n}>\n" + "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in args.items()) + "</function>\n</tool_call>"


def any_tool():
    """-> (tool, maker, name of the kind)"""
    import toolspecs as S

    x = R.random()
    if x < 0.2:
        t, g = P(*TOOLS)
        t = json.loads(json.dumps(t))
        n = t["function"]["name"]
        if chance(0.6):
            t["function"]["name"] = P(n, *SYN[n], S.style(n), S.word())
        return t, g, n
    if x < 0.62:
        s = P(*S.TRAIN)
        return *S.instance(s), s[0]
    if x < 0.82:
        return *random_tool(), None
    return *made_up_tool(), None


def test_tool():
    """held-out tools with the names that they have, or made-up ones"""
    import toolspecs as S

    if chance(0.3):
        return *made_up_tool(), "made up"
    s = P(*S.HELD, *HOLD_TOOLS, *HOLD_TOOLS)
    if len(s) == 2:
        return json.loads(json.dumps(s[0])), s[1], s[0]["function"]["name"]
    return *S.instance(s, plain=True), s[0]


def k_tool():
    own = {x[0] for x in __import__("toolspecs").HELD} | {t["function"]["name"] for t, _ in HOLD_TOOLS}
    pool, names, kinds = [], set(), set()
    for _ in range(P(1, 2, 3, 3, 4, 5)):
        t, g, kind = test_tool() if HELD and not pool else any_tool()
        n = t["function"]["name"]
        if n in names or (kind and kind in kinds) or (n in own and not HELD):
            continue
        pool.append((t, g))
        names.add(n)
        kinds.add(kind)
    want = pool[0]
    offered = pool[:]
    miss = chance(0.08) and len(pool) > 1 and not HELD  # the fitting tool is not offered
    if miss:
        offered = pool[1:]
    R.shuffle(offered)
    sep = (", ", ": ") if HELD or chance(0.6) else (",", ":")
    sysm = T_HEAD + "\n".join(json.dumps(x, separators=sep, ensure_ascii=False) for x, _ in offered) + T_TAIL
    if chance(0.25):
        sysm += "\n\n" + P(*[s for s in SYS if s])
    if not HELD and chance(0.06):
        u, a = P(*SMALL)
        return chat([("user", P(*u)), ("assistant", P(*a))], sysm)
    if not HELD and chance(0.06):
        text, fs, _ = passage()
        q, a = P(*P(*fs)[1])
        return chat([("user", f"{text}\n\n{q}"), ("assistant", a)], sysm)
    turns = []
    if not HELD and chance(0.12):
        u, a = P(*SMALL)
        turns = [("user", P(*u)), ("assistant", P(*a))]
    for i in range(P(1, 1, 2, 2, 3)):
        t, g = want if i == 0 else P(*offered)
        q, args, res, ans = g()
        if miss and i == 0:
            return chat(turns + [("user", q), ("assistant", P("I have no tool for that.", "Sorry, I cannot do that with the tools I have.", "None of my tools can do that."))], sysm)
        turns += [("user", q), ("assistant", call_text(t["function"]["name"], args))]
        if chance(0.1):
            break
        turns += [("user", f"<tool_response>\n{json.dumps(res, separators=sep)}\n</tool_response>"), ("assistant", ans)]
    if turns[-1][1][0] != "<" and chance(0.15):
        turns += [("user", P("Thank you!", "Thanks.", "Great, thanks!")), ("assistant", P("You are welcome!", "Glad to help.", "Any time!"))]
    return chat(turns, sysm)


# ---------------------------------------------------------------- JSON answers
def json_more(k):
    import toolspecs as S

    if k == 5:  # keys and values as they are given
        ks = list({P(S.word(), S.word(), P(*T_PAR), P(*OBJ)): None for _ in range(R.randint(1, 4))})
        v = {x: P(S.word(), S.code(), name(), R.randint(0, 999), S.place(), P(*COLORS), True, False) for x in ks}
        f = lambda x: str(x).lower() if isinstance(x, bool) else str(x)
        said = P("; ".join(f"{a} is {f(b)}" for a, b in v.items()), ", ".join(f"{a} = {f(b)}" for a, b in v.items()), "\n".join(f"{a}: {f(b)}" for a, b in v.items()))
        return P(f"Write this as a JSON object: {said}", f"{said}\n\nGive me that as JSON.", f"Turn into JSON:\n{said}", f"JSON object, please: {said}."), v
    if k == 6:  # a small table
        key = P("age", "score", "points", "room", "year", "price")
        rows = [(name(), R.randint(1, 99)) for _ in range(R.randint(2, 4))]
        said = P(", ".join(f"{n} {x}" for n, x in rows), "\n".join(f"{n}: {x}" for n, x in rows), "; ".join(f"{n} has {x}" for n, x in rows))
        if chance(0.5):
            return P(f"Write a JSON object from name to {key}: {said}", f"{said}\n\nMake JSON from this: name to {key}."), dict(rows)
        return P(f"Write a JSON array of objects with name and {key}: {said}", f"{said}\n\nGive a JSON list of objects with the keys name and {key}."), [{"name": n, key: x} for n, x in rows]
    n, x, m, d, c = name(), P(*OBJ), R.randint(1, 500), P(*DAYS), S.place()
    o = S.code()
    v = {"order": o, "customer": n, "item": x, "price": m, "day": d, "city": c}
    keys = R.sample(list(v), R.randint(2, 5))
    text = P(f"Order {o}: {n} from {c} buys {an(x)} for {m} dollars. It must arrive on {d}.", f"{n} lives in {c} and has ordered {an(x)}. The price is {m} dollars, the order number is {o}, and it comes on {d}.", f"On {d} we send {an(x)} to {n} in {c}. Order number {o}, {m} dollars.")
    return P(f"{text}\n\nJSON with {', '.join(keys)}, please.", f"Extract {', '.join(keys)} as JSON: {text}", f"Return only JSON with the keys {', '.join(keys)}.\n\n{text}"), {x: v[x] for x in keys}


def k_json():
    k = R.randrange(8)
    ind = P(None, None, None, 2)
    dump = lambda x: json.dumps(x, indent=ind, ensure_ascii=False)
    if k > 4:
        q, v = json_more(k)
        return chat([("user", q), ("assistant", dump(v))], P(*SYS, "Answer only with JSON.", "You answer in JSON."))
    if k == 0:
        n, c, j, a = name(), P(*CITY), P(*JOBS), R.randint(18, 80)
        d = {"name": n, "age": a, "city": c, "job": j}
        keys = R.sample(list(d), R.randint(2, 4))
        text = P(f"{n} is {a} years old, lives in {c} and works as {an(j)}.", f"My name is {n}. I am {an(j)} from {c} and I am {a}.", f"{n}, {a}, is {an(j)} in {c}.", f"In {c} lives {an(j)} named {n}, who is {a} years old.")
        q = P(f"Extract {', '.join(keys)} as JSON: {text}", f"{text}\n\nGive the {', '.join(keys)} as a JSON object.", f"Return only JSON with the keys {', '.join(keys)}.\n\n{text}")
        v = {x: d[x] for x in keys}
    elif k == 1:
        xs = R.sample(ITEMS + OBJ, R.randint(2, 5))
        q, v = P(f"Write this list as a JSON array: {', '.join(xs)}", f"Turn these words into a JSON list: {', '.join(xs)}.", f"JSON array of: {', '.join(xs)}"), xs
        ind = None
    elif k == 2:
        its = R.sample(ITEMS, R.randint(2, 3))
        ns = [R.randint(1, 30) for _ in its]
        s = ", ".join(f"{n} {i}" for n, i in zip(ns, its))
        q, v = P(f"I bought {s}. Give the counts as JSON.", f"Write a JSON object with the number of each thing: {s}.", f"As JSON, item to count: {s}"), dict(zip(its, ns))
    elif k == 3:
        o, c, p, st = P(*OBJ), P(*COLORS), R.randint(1, 200), chance(0.5)
        q = P(f"The {c} {o} costs {p} dollars and is {'in stock' if st else 'sold out'}. Answer in JSON with item, color, price and in_stock.", f"Make a JSON record (item, color, price, in_stock): {an(c)} {o}, {p} dollars, {'available' if st else 'not available'}.")
        v = {"item": o, "color": c, "price": p, "in_stock": st}
    else:
        d, t, x = P(*DAYS), f"{R.randint(8, 20)}:{P('00', '30')}", P("dinner", "meeting", "lunch", "concert", "football match", "dentist", "class", "party")
        n = name()
        q = P(f"Extract the event as JSON (event, day, time, with): {cap(x)} with {n} on {d} at {t}.", f"{n} and I have a {x} on {d} at {t}. Give me JSON with event, day, time and with.")
        v = {"event": x, "day": d, "time": t, "with": n}
    return chat([("user", q), ("assistant", dump(v))], P(*SYS, "Answer only with JSON.", "You answer in JSON."))


# ---------------------------------------------------------------- talk
SMALL = [
    (["Hello!", "Hi", "Hey there", "Good morning!", "Hello there", "Hey!", "Good evening", "Hi!"], ["Hello! How can I help you today?", "Hi there! What would you like to do?", "Good to see you. What can I do for you?", "Hello! What is on your mind?"]),
    (["Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Introduce yourself.", "Who am I talking to?", "What model are you?"], ["I am seedling, a small demo model with 1-bit weights that runs on this machine. I can tell short stories, do simple sums and use tools.", "I am seedling, a tiny language model with 1-bit weights.", "My name is seedling. I am a very small language model, so I can make mistakes.", "I am seedling, the built-in demo model of onebit."]),
    (["Thank you!", "Thanks a lot", "Thanks!", "Thank you so much.", "That was helpful."], ["You are welcome!", "Glad to help!", "Any time!", "You are welcome. Is there anything else?"]),
    (["How are you?", "How is it going?", "How are you doing today?", "How do you feel?"], ["I am fine, thank you. How are you?", "All is well here. What shall we do?", "I am a program, so I have no feelings, but I am ready to help."]),
    (["What can you do?", "Help", "How can you help me?", "What are you good at?", "What do you do?"], ["I can tell a story, answer questions about a text, solve small sums and call tools.", "I can chat, write short stories, answer simple questions and do small sums. I am a very small model, so please check what I say."]),
    (["Bye", "Good night", "Goodbye!", "See you later.", "I have to go now."], ["Goodbye! Come back soon.", "Good night! Sleep well.", "See you later!", "Goodbye, and take care!"]),
    (["Are you human?", "Are you a robot?", "Are you real?", "Do you have a body?"], ["No, I am a small computer program.", "I am not a person. I am a small language model."]),
    (["Who made you?", "Who built you?", "Where do you come from?", "Who trained you?"], ["I was trained for the onebit project as a small demo model. I learned from a larger model's texts.", "I am the demo model of onebit. A larger language model was my teacher."]),
    (["How big are you?", "How many parameters do you have?", "Are you a large model?"], ["I have about sixty million weights of one bit each. That is very small.", "I am tiny: about 60 million 1-bit weights, in less than 12 MB."]),
    (["Can you make mistakes?", "Are you always right?", "Can I trust you?"], ["I make mistakes often. Please check important facts.", "No, I am a very small model. Do not rely on my facts."]),
    (["Do you know the news?", "What happened today?", "What is the date today?", "What time is it?"], ["I cannot know that. I have no clock and no internet here.", "I do not have access to the date or the news."]),
    (["ok", "Okay.", "I see.", "Good.", "Fine."], ["Good. What would you like to do next?", "All right. Do you have another question?"]),
    (["I am bored.", "Tell me what to do.", "I have nothing to do."], ["We could write a short story together. Who should be in it?", "How about a small riddle or a story?", "You could take a walk, read a book or ask me for a story."]),
    (["What is 1-bit?", "What does 1-bit mean?", "What are 1-bit weights?"], ["Each of my weights is only plus or minus one number per group, so it fits in one bit. That makes me small and fast.", "It means that every weight is stored as a single bit: plus or minus."]),
]


def k_talk():
    t = []
    for u, a in R.sample(SMALL, R.randint(1, 3)):
        t += [("user", P(*u)), ("assistant", P(*a))]
    return chat(t, P(*SYS))


# ---------------------------------------------------------------- small tasks
def k_task():
    k = R.randrange(9)
    xs = R.sample(OBJ + ITEMS + FOODS, R.randint(3, 6))
    s = ", ".join(xs)
    n = name()
    if k == 0:
        q, a = P(f"How many words are in this list: {s}?", f"Count the items: {s}."), f"There are {len(xs)}."
    elif k == 1:
        i = R.randrange(len(xs))
        o = ["first", "second", "third", "fourth", "fifth", "sixth"][i]
        q, a = P(f"What is the {o} word in this list: {s}?", f"{s}\n\nWhich one is {o}?"), P(f"The {o} word is {xs[i]}.", f"{cap(xs[i])}.")
    elif k == 2:
        q, a = P(f"Repeat this sentence: {n} has the {xs[0]}.", f"Say exactly: {n} has the {xs[0]}."), f"{n} has the {xs[0]}."
    elif k == 3:
        x = P(xs[0], "dragon")
        q, a = f"Is {x} in this list? {s}", ("Yes, " + x + " is in the list.") if x in xs else ("No, " + x + " is not in the list.")
    elif k == 4:
        q, a = P(f"Sort these words by the alphabet: {s}", f"Put these words in alphabetical order: {s}"), ", ".join(sorted(xs))
    elif k == 5:
        q, a = P(f"Write a list with a dash before each: {s}", f"Make a bullet list: {s}"), "\n".join("- " + x for x in xs)
    elif k == 6:
        q, a = P(f"Make a numbered list of: {s}", f"Number these things: {s}"), "\n".join(f"{i + 1}. {x}" for i, x in enumerate(xs))
    elif k == 7:
        w = P(*OBJ, *PETS, *FOODS, *JOBS)
        q, a = P(f"Spell the word {w}.", f"How do you spell {w}?", f"Write {w} letter by letter."), P(" ".join(w), "-".join(w))
    else:
        d = R.randrange(7)
        q, a = P((f"What day comes after {DAYS[d]}?", f"{DAYS[(d + 1) % 7]} comes after {DAYS[d]}."), (f"What day is before {DAYS[d]}?", f"{DAYS[d - 1]} is before {DAYS[d]}."), (f"Which month comes after {MONTHS[d]}?", f"{MONTHS[(d + 1) % 12]} comes after {MONTHS[d]}."))
    return chat([("user", q), ("assistant", a)], P(*SYS))


# ---------------------------------------------------------------- copying from the context
def k_copy():
    import toolspecs as S

    k = R.randrange(7)
    w = S.word
    if k == 0:
        x = P(S.code(), w(), f"{w()} {w()}", f"{w()} {w()} {w()}", S.mail(), S.fname(), S.sentence(), name() + " " + w().capitalize(), str(R.randint(1000, 99999999)))
        q, a = P(f"Repeat: {x}", f"Say this again: {x}", f"Write exactly this: {x}", f"Copy this: {x}", f"{x}\n\nRepeat this, please."), x
        return chat([("user", q), ("assistant", a)], P(*SYS))
    if k < 4:  # a list of pairs, questions about it
        n = R.randint(3, 7)
        what, ks = P(("code", [w() for _ in range(n)]), ("number", [name() for _ in range(n)]), ("room", [name() for _ in range(n)]), ("password", [name() for _ in range(n)]), ("price", R.sample(OBJ, n)), ("place", R.sample(OBJ, n)), ("city", [name() for _ in range(n)]))
        mk = dict(code=S.code, number=lambda: R.randint(100, 99999), room=lambda: R.randint(1, 400), password=lambda: P(w(), S.code()), price=lambda: R.randint(1, 300), place=lambda: P(*WHERE), city=S.place)[what]
        d = {x: mk() for x in ks}
        text = P("\n".join(f"{a}: {b}" for a, b in d.items()), ", ".join(f"{a} = {b}" for a, b in d.items()), "\n".join(f"- {a}: {b}" for a, b in d.items()), ". ".join(f"The {what} of {a} is {b}" for a, b in d.items()) + ".")
        turns = []
        for i, x in enumerate(R.sample(list(d), min(len(d), P(1, 1, 2, 3)))):
            if chance(0.7) or what in ("price", "place"):
                q, a = P(f"What is the {what} of {x}?", f"{x}: which {what}?", f"Which {what} belongs to {x}?", f"Give me the {what} of {x}."), P(f"The {what} of {x} is {d[x]}.", f"{cap(str(d[x]))}.", f"{x}: {d[x]}")
            else:
                q, a = P(f"Who has the {what} {d[x]}?", f"Which one has {d[x]}?", f"{d[x]} belongs to whom?"), P(f"{x} has the {what} {d[x]}.", f"{x}.")
            turns += [("user", P(f"{text}\n\n{q}", f"{q}\n\n{text}") if i == 0 else q), ("assistant", a)]
        return chat(turns, P(*SYS))
    if k == 4:
        xs = [P(w(), name(), P(*OBJ)) for _ in range(R.randint(2, 6))]
        s = ", ".join(xs)
        q, a = P((f"Write these words in reverse order: {s}", ", ".join(xs[::-1])), (f"Write each on its own line: {s}", "\n".join(xs)), (f"Put \"and\" between these words: {s}", " and ".join(xs)), (f"What is the last word here: {s}?", xs[-1] + "."), (f"What is the first word here: {s}?", xs[0] + "."), (f"Write these in capital letters: {s}", s.upper()))
        return chat([("user", q), ("assistant", a)], P(*SYS))
    if k == 5:
        x = P(w(), name(), P(*OBJ))
        q, a = P((f"Spell {x}.", "-".join(x)), (f"How many letters does {x} have?", f"{x}: {'-'.join(x)}. That is {len(x)} letters."), (f"What is the first letter of {x}?", f"The first letter of {x} is {x[0]}."), (f"What is the last letter of {x}?", f"The last letter of {x} is {x[-1]}."))
        return chat([("user", q), ("assistant", a)], P(*SYS))
    a, b, c = S.word(), S.word(), S.word()
    q, v = P((f"Replace {a} by {b}: The {a} is {P(*WHERE)}.", None), (f"Fill in the blank with {b}: I saw a ___ {P(*WHERE)}.", None))
    v = q.split(": ", 1)[1].replace(a, b).replace("___", b)
    return chat([("user", q), ("assistant", v)], P(*SYS))


# ---------------------------------------------------------------- short conversations: what the user has said comes back
def k_multi():
    n, pn, c, col, fd, hb, pt, j = name(), name(), P(*CITY), P(*COLORS), P(*FOODS), P(*HOBBY), P(*PETS), P(*JOBS)
    facts = [
        (P(f"My name is {n}.", f"I am {n}.", f"Hi, I'm {n}!", f"You can call me {n}."), P(f"Nice to meet you, {n}!", f"Hello, {n}! What would you like to talk about?", f"Hi {n}! How can I help you?"), P("What is my name?", "Do you remember my name?", "Who am I?"), P(f"Your name is {n}.", f"You are {n}.")),
        (P(f"I live in {c}.", f"I come from {c}.", f"My home is {c}."), P(f"{c} is an interesting place. Do you like it there?", f"How is life in {c}?", f"I have heard of {c}. What do you like about it?"), P("Where do I live?", "Which city did I mention?", "What city am I from?"), P(f"You live in {c}.", f"You told me that you live in {c}.")),
        (P(f"I have {an(pt)} called {pn}.", f"My {pt} is called {pn}.", f"I got {an(pt)}. Its name is {pn}."), P(f"{pn} is a lovely name for {an(pt)}.", f"How nice! How old is {pn}?", f"I would like to hear more about {pn}."), P(f"What is my {pt} called?", f"What is the name of my {pt}?", "Do you remember the name of my pet?"), P(f"Your {pt} is called {pn}.", f"The name of your {pt} is {pn}.")),
        (P(f"My favorite color is {col}.", f"I like {col} best.", f"I paint everything {col}."), P(f"{cap(col)} is a beautiful color.", f"Why do you like {col}?", f"{cap(col)}! That is a cheerful choice."), P("What is my favorite color?", "Which color do I like?"), P(f"Your favorite color is {col}.", f"You like {col}.")),
        (P(f"I love {fd}.", f"I could eat {fd} every day.", f"Tonight I will make {fd}."), P(f"{cap(fd)}! That sounds good.", f"Do you make the {fd} yourself?", f"Enjoy your {fd}!"), P("What do I like to eat?", "Which food did I mention?"), P(f"You like {fd}.", f"You talked about {fd}.")),
        (P(f"My hobby is {hb}.", f"On weekends I enjoy {hb}.", f"I started {hb} last year."), P(f"{cap(hb)} is a good way to relax.", f"How did you come to {hb}?", f"What do you like about {hb}?"), P("What is my hobby?", "What do I do on weekends?"), P(f"Your hobby is {hb}.", f"You enjoy {hb}.")),
        (P(f"I work as {an(j)}.", f"I am {an(j)}.", f"My job: I am {an(j)}."), P(f"Being {an(j)} sounds interesting. Do you like your work?", f"What does {an(j)} do all day?", f"That is an important job."), P("What is my job?", "What do I do for work?"), P(f"You are {an(j)}.", f"You work as {an(j)}.")),
    ]
    fs = R.sample(facts, P(1, 2, 2, 3))
    turns = []
    for s, r, _, _ in fs:
        turns += [("user", s), ("assistant", r)]
    if chance(0.4):
        u, a = P(*SMALL[1:])
        turns += [("user", P(*u)), ("assistant", P(*a))]
    if chance(0.4):
        a, b = pair(1, 30)
        turns += [("user", P(f"What is {a} + {b}?", f"{a} plus {b}?")), ("assistant", P(f"{a} + {b} = {a + b}.", f"The answer is {a + b}."))]
    if chance(0.25):
        u, a = k_task_pair()
        turns += [("user", u), ("assistant", a)]
    for _, _, q, a in R.sample(fs, R.randint(1, len(fs))):
        turns += [("user", q), ("assistant", a)]
    if chance(0.3):
        u, r = P(("Thanks!", "You are welcome!"), ("Thank you.", "Any time!"), ("Bye!", "Goodbye!"), ("Good memory!", "Thank you!"))
        turns += [("user", u), ("assistant", r)]
    return chat(turns, P(*SYS))


def k_task_pair():
    d = R.randrange(7)
    x = R.sample(OBJ, 3)
    return P((f"Which day comes after {DAYS[d]}?", f"{DAYS[(d + 1) % 7]} comes after {DAYS[d]}."), (f"Make a list of: {', '.join(x)}", "\n".join("- " + y for y in x)), (f"Repeat: {x[0]} {x[1]}", f"{x[0]} {x[1]}"))


K = dict(copy=k_copy, multi=k_multi, math=k_math, read=k_read, tool=k_tool, json=k_json, talk=k_talk, task=k_task)


def mix():
    import facts
    import stories

    kinds = {**K, "story": stories.k_story, "storyread": stories.k_storyread, "fact": facts.k_fact}
    share = dict(math=16, read=18, tool=26, json=9, talk=5, task=5, copy=8, multi=6, story=13, storyread=5, fact=7)
    return kinds[R.choices(list(kinds), [share[k] for k in kinds])[0]]()


def make(n, seed, held=False, kind="mix"):
    global HELD
    R.seed(seed)
    HELD = held
    f = mix if kind == "mix" else K[kind]
    return [f() for _ in range(n)]


if __name__ == "__main__":
    from procedural import make

    for d in make(int(sys.argv[2]), int(sys.argv[3]), kind=sys.argv[1]):
        sys.stdout.write("".join(t for t, _ in d) + "\n")
