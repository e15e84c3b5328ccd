"""Short stories with tracked state (who, where, what, why), so that names, pronouns and things agree. Own work.
   python stories.py N SEED"""
import sys

import procedural as Q
from procedural import P, an, cap, chance

ANIM = [("rabbit", "hopped"), ("fox", "trotted"), ("bear", "walked"), ("mouse", "ran"), ("duck", "waddled"), ("frog", "hopped"), ("owl", "flew"), ("turtle", "crawled"), ("squirrel", "ran"), ("hedgehog", "walked"), ("badger", "walked"), ("otter", "swam"), ("crow", "flew"), ("goose", "waddled"), ("deer", "walked"), ("goat", "climbed"), ("cat", "walked"), ("dog", "ran"), ("beaver", "swam"), ("sparrow", "flew"), ("pony", "trotted"), ("mole", "crawled"), ("lamb", "walked"), ("raccoon", "ran")]
FOLK = "farmer baker fisherman shoemaker painter sailor shepherd gardener carpenter miller clockmaker teacher weaver potter tailor postman librarian cook".split()
ADJA = "small brave shy clever kind curious cheerful quiet proud gentle stubborn young careful lively patient friendly".split()
PLACE = [("the park", "the pond"), ("the forest", "the old oak tree"), ("the beach", "the rocks"), ("the garden", "the apple tree"), ("the village square", "the well"), ("the farm", "the barn"), ("the meadow", "the stream"), ("the market", "the fountain"), ("the hill", "the stone wall"), ("the harbor", "the blue boat"), ("the school yard", "the swing"), ("the mountain path", "the cave"), ("the river", "the wooden bridge"), ("the orchard", "the ladder"), ("the lake", "the little pier"), ("the old mill", "the water wheel"), ("the station", "the bench"), ("the field", "the scarecrow")]
TOY = ["ball", "kite", "hat", "basket", "boat", "bell", "book", "scarf", "drum", "lantern", "key", "cup", "flute", "whistle", "ribbon", "coat", "umbrella", "doll", "marble", "map", "mirror", "ring", "feather", "blanket", "wagon", "pencil box", "button", "clock"]
COL = "red blue green brown white golden yellow purple orange silver pink gray striped shiny old tiny".split()
FOOD = ["bread", "apples", "berries", "soup", "honey cakes", "cookies", "pears", "nuts", "pancakes", "cheese", "warm milk", "plum cake", "roasted corn", "carrots", "tea and toast", "jam tarts"]
WEATHER = [("sunny", "The sun was warm on the grass"), ("windy", "The wind pulled at the leaves"), ("rainy", "Rain fell softly on the roofs"), ("cold", "Snow lay on the ground"), ("foggy", "A gray fog hung over everything"), ("bright", "The sky was clear and blue"), ("hot", "The air was hot and still"), ("stormy", "Dark clouds came over the hills"), ("mild", "A soft breeze came from the west")]
WHEN = ["One morning", "One day", "One afternoon", "Early one morning", "On a quiet evening", "Last summer", "One Saturday", "After lunch one day", "On the first day of spring", "One autumn day", "Before sunrise", "On a Sunday", "Late one afternoon", "At the end of winter"]
GOOD = ["happy", "glad", "proud", "full of joy", "very pleased", "happier than ever"]
BAD = ["sad", "worried", "upset", "unhappy", "very quiet", "close to tears"]


class C:
    def __init__(s, used, human=0.5):
        while True:
            r = Q.R.random()
            s.name = Q.name(*used)
            if r < human:
                s.kind, s.move = ("girl" if Q.he(s.name) == "she" else "boy"), P("walked", "ran", "hurried", "went")
            elif r < human + 0.15:
                s.kind, s.move = P(*FOLK), P("walked", "went")
            else:
                s.kind, s.move = P(*ANIM)
            if s.kind in ("girl", "boy") or s.kind not in used:
                break
        used |= {s.name, s.kind}
        s.he, s.him, s.his = ("she", "her", "her") if Q.he(s.name) == "she" else ("he", "him", "his")
        s.He, s.His = cap(s.he), cap(s.his)
        s.adj = P(*ADJA)
        s.desc = f"{s.name} the {s.kind}" if s.kind not in ("girl", "boy") else f"{an(s.kind)} named {s.name}"


def say(c, q, how=None):
    ask = q.endswith("?")
    how = how or (P("asked", "wanted to know") if ask else P("called", "cried", "shouted") if q.endswith("!") else P("said", "said", "answered", "replied", "explained"))
    if how == "wanted to know":
        return f'"{q}" {c.name} wanted to know.'
    q2 = q[:-1] + "," if q.endswith(".") else q
    return P(f'"{q2}" {how} {c.name}.', f'"{q2}" {how} {c.name}.', f'{c.name} {how}, "{q}"')


class W:
    def __init__(s):
        u = set()
        s.a, s.b, s.c = C(u), C(u, 0.3), C(u, 0.4)
        s.p, s.spot = P(*PLACE)
        s.o, s.col = P(*TOY), P(*COL)
        s.w, s.wt = P(*WEATHER)
        s.food = P(*FOOD)
        s.when = P(*WHEN)
        s.t, s.f = [], []

    def add(s, *x):
        s.t.append(P(*x))

    def fact(s, q, *a):
        s.f.append((q, P(*a)))

    def nl(s):
        s.t.append("\n")


def opening(w, thing=True):
    a = w.a
    d = an(a.adj + " " + a.kind)
    w.add(f"Once upon a time, there was {d} named {a.name}.", f"Once there was {d} called {a.name}.", f"{a.name} was {d}.", f"There once lived {d} whose name was {a.name}.", f"Near {w.p} lived {d} named {a.name}.", f"In a small house near {w.p} lived {d} called {a.name}.", f"Not far from here, there was {d} named {a.name}.", f"This is the story of {a.name}, {d}.", f"Long ago, {d} named {a.name} lived close to {w.p}.")
    if thing:
        w.add(f"{a.He} had {an(w.col)} {w.o}.", f"{a.His} favorite thing was {an(w.col)} {w.o}.", f"{a.He} loved {a.his} {w.col} {w.o} more than anything.", f"Wherever {a.he} went, {a.he} carried {an(w.col)} {w.o}.", f"For {a.his} birthday {a.he} had been given {an(w.col)} {w.o}.", f"{a.His} grandmother had given {a.him} {an(w.col)} {w.o}.")
        w.fact(f"What did {a.name} have?", f"{a.name} had {an(w.col)} {w.o}.")
        w.fact(f"Who had the {w.o}?", f"{a.name} had the {w.o}.")
    if chance(0.4):
        w.nl()
    w.add(f"{w.when}, {a.name} {a.move} to {w.p}. {w.wt}.", f"{w.when} it was {w.w}, and {a.name} went to {w.p}.", f"{w.when}, {a.he} went out to {w.p}. {w.wt}.", f"{w.when}, {a.name} wanted to see {w.p}, so {a.he} set off. {w.wt}.", f"{w.wt} when {a.name} came to {w.p} {P('that day', 'one day', 'in the morning')}.")
    w.fact(f"Where did {a.name} go?", f"{a.name} went to {w.p}.")
    if f"it was {w.w}" in w.t[-1] or w.wt in w.t[-1]:
        w.fact("What was the weather like?", f"It was {w.w}.")


def meet(w, who):
    a = w.a
    human = who.kind in ("girl", "boy")
    w.add(f"There {a.he} met {who.desc}.", f"By {w.spot} {a.he} saw {who.desc}.", f"{who.desc if not human else cap(who.desc)} was sitting by {w.spot}.", f"Just then {who.desc} came along.", f"On the way {a.he} met {who.desc}.", f"Near {w.spot} stood {who.desc}.")
    w.fact(f"Who did {a.name} meet?", f"{a.name} met {who.desc}.")


MORALS = {}


def end(w, *morals):
    a, b = w.a, w.b
    if chance(0.6):
        w.nl()
    w.add(f"{a.name} and {b.name} shared some {w.food} and laughed together.", f"That night {a.name} went to bed with a smile.", f"From that day on, {a.name} and {b.name} were good friends.", f"They sat by {w.spot} and ate {w.food} until the sun went down.", f"On the way home {a.name} sang a little song.", f"When {a.he} came home, {a.name} told everyone the whole story.", f"Later they had {w.food}, and it had never tasted so good.", f"{a.name} felt {P(*GOOD)}, and so did {b.name}.", f"{a.name} never forgot that day at {w.p}.")
    if chance(0.6):
        m = P(*morals)
        w.add(m, f"{a.name} had learned something: {m[0].lower() + m[1:]}", f"And that is why {a.name} always says, \"{m}\"", f"So {a.name} knew now: {m[0].lower() + m[1:]}")


def lost(w):
    a, b = w.a, w.b
    opening(w)
    w.add(f"But when {a.he} looked for the {w.o}, it was gone!", f"After a while {a.he} saw that the {w.o} was missing.", f"{a.He} put the {w.o} down for a moment. When {a.he} turned around, it was not there.", f"Suddenly {a.he} felt in {a.his} bag. The {w.o} was not in it.")
    w.add(say(a, f"Oh no! Where is my {w.o}?", "cried"), f"{a.name} was {P(*BAD)}.", f"{a.He} looked left and right and felt {P(*BAD)}.")
    w.fact(f"What did {a.name} lose?", f"{a.name} lost the {w.o}.")
    w.nl()
    meet(w, b)
    w.add(say(b, "Why are you so sad?", "asked"), say(b, "What is wrong?", "asked"), say(b, "Can I help you?", "asked"))
    w.add(say(a, f"I lost my {w.o}."), say(a, f"I cannot find my {w.o}."), say(a, f"My {w.o} is gone."))
    w.add(say(b, "Do not worry. I will help you look."), say(b, "Let us look for it together."), say(b, "Four eyes see more than two."))
    for _ in range(P(1, 1, 2, 3)):
        w.add(f"They looked under the {P('bench', 'leaves', 'bridge', 'bush', 'cart', 'table', 'stairs')}, but it was not there.", f"They asked {P('a bird', 'an old woman', 'the baker', 'a bee', 'the postman', 'two children')}, but nobody had seen it.", f"They looked behind {w.spot}, but they only found a {P('stone', 'feather', 'stick', 'shell', 'nut', 'bottle')}.", f"They walked all the way back to the {P('gate', 'road', 'corner', 'fence')}, but they found nothing.")
    hid = P("in the tall grass", "on a low branch", "under a big leaf", "inside an empty box", f"next to {w.spot}", "behind a stone", "in a bird's nest", "under a pile of hay")
    w.nl()
    w.add(f"At last {b.name} saw something {hid}. It was the {w.o}!", f"Then {b.name} pointed. The {w.o} was {hid}!", f"Just before dark, {b.name} looked {hid}, and there was the {w.o}.", f"\"Look!\" said {b.name}. The {w.o} was lying {hid}.")
    w.fact(f"Where was the {w.o}?", f"The {w.o} was {hid}.")
    w.fact(f"Who found the {w.o}?", f"{b.name} found the {w.o}.")
    w.add(say(a, "Thank you! You are a good friend."), say(a, "How can I ever thank you?"), f"{a.name} hugged {b.name} and thanked {b.him} again and again.")
    end(w, "A friend makes every search shorter.", "It is easier to find things together.", "Do not give up too early.")


def share(w):
    a, b = w.a, w.b
    opening(w)
    meet(w, b)
    w.add(say(b, f"May I play with your {w.o}?", "asked"), say(b, f"Can I hold your {w.o}, please?", "asked"), say(b, f"What a nice {w.o}! May I try it?", "asked"))
    w.add(f"{a.name} did not want to share. {a.He} held the {w.o} tight.", f"{a.name} shook {a.his} head and turned away.", say(a, "No, it is mine."), f"But {a.name} pretended not to hear.")
    w.fact(f"What did {b.name} want?", f"{b.name} wanted the {w.o}.")
    w.nl()
    w.add(f"{b.name} felt {P('sad', 'hurt', 'lonely')} and sat alone by {w.spot}.", f"{b.name} said nothing and went to {w.spot}.")
    w.add(f"{a.name} played alone, but it was not much fun.", f"Soon {a.name} was bored.", f"After a while the {w.o} was not so interesting any more.")
    w.add(f"{a.He} looked at {b.name} and thought for a while.", f"{a.He} saw {b.name}'s face and was ashamed.")
    w.add(say(a, f"I am sorry. Let us play with the {w.o} together."), say(a, f"Come, you can have the {w.o} now."), say(a, "I was not kind. Please come and play with me."))
    w.nl()
    w.add(f"They took turns. First {b.name} had the {w.o}, and then {a.name}.", "So they played all afternoon, and the time flew by.", f"{b.name} knew a new game, and it was the best game {a.name} had ever played.")
    w.fact(f"What did {a.name} do in the end?", f"{a.name} shared the {w.o}.")
    end(w, "Sharing makes fun grow bigger.", "A thing that is shared is never lost.", "It is never too late to be kind.")


def rescue(w):
    a, b = w.a, w.b
    opening(w, chance(0.4))
    how = P(f"stuck in the mud near {w.spot}", f"lying behind {w.spot} with a sore foot", "caught in an old net", "too high up in a tree and afraid to come down", "trapped in a deep hole", "sitting on a rock in the water")
    w.add(f"Suddenly {a.he} heard a small voice. \"Help!\"", f"Then {a.he} heard someone calling for help.", f"A strange sound came from {w.spot}. {a.name} stopped and listened.")
    w.add(f"It was {b.desc}, who was {how}.")
    w.fact(f"Why did {b.name} need help?", f"{b.name} was {how}.")
    w.add(say(a, "Hold on! I will help you."), say(a, "Do not be afraid. I am here."), say(a, "Stay still. I am coming!"))
    w.nl()
    w.add(f"{a.name} tried once, but it did not work.", f"It was not easy, and {a.name} was a little afraid.", f"At first {a.he} did not know what to do.")
    tool = P("a long stick", "a rope", "a strong branch", "a warm blanket", "an old ladder", "a wooden board")
    w.add(f"Then {a.he} had an idea. {a.He} used {tool}, and slowly, slowly, {b.name} was free.", f"So {a.he} fetched {tool}, and together they did it.", f"{a.He} found {tool} nearby. With it {a.he} helped {b.name} out.")
    w.fact(f"What did {a.name} use?", f"{a.name} used {tool}.")
    w.add(say(b, "You were very brave. Thank you!"), say(b, "Without you I would still be there."), f"{b.name} thanked {a.him} with all {b.his} heart.")
    end(w, "Even a small helper can do a big thing.", "Being brave means helping even when you are afraid.", "A good idea can be stronger than big arms.")


def grow(w):
    a, b = w.a, w.b
    opening(w, False)
    pl, res = P(("a bean", "a tall green plant"), ("a sunflower seed", "a yellow sunflower"), ("an apple seed", "a little apple tree"), ("a pumpkin seed", "a huge pumpkin"), ("a rose bush", "a red rose"), ("an onion", "a green shoot"))
    meet(w, b)
    w.add(f"{b.name} gave {a.him} {pl}.", f"{b.He} had a present for {a.name}: {pl}.")
    w.add(say(b, "Give it water every day, and wait."), say(b, "Put it in the ground and be patient."), say(b, "It looks small, but wait and see."))
    w.fact(f"What did {b.name} give {a.name}?", f"{b.name} gave {a.name} {pl}.")
    w.nl()
    n = P("three", "five", "seven", "ten", "twelve", "twenty")
    w.add(f"{a.name} put it in the ground and gave it water. For {n} days nothing happened.", f"Every day {a.name} looked at the ground. {cap(n)} days went by, and there was nothing to see.", f"{a.He} watered it each morning, but for {n} days the ground stayed bare.")
    w.fact("How many days did nothing happen?", f"Nothing happened for {n} days.")
    w.add(say(a, "Maybe it will never grow."), say(a, "I think I did something wrong."), f"{a.name} wanted to give up.")
    w.add(say(b, "Wait a little longer."), say(b, "Good things take their time."))
    w.nl()
    w.add(f"The next morning there was a tiny green leaf! {a.name} jumped for joy.", f"And then, after a night of rain, a small green leaf looked out of the ground.")
    w.add(f"In the summer it was {res}, and everyone came to see it.", f"Weeks later there stood {res}.", f"It grew and grew until it was {res}.")
    w.fact("What grew in the end?", f"It was {res}.")
    end(w, "Good things need time.", "Patience is hard work, too.", "Small seeds can become great things.")


def race(w):
    a, b = w.a, w.b
    opening(w, False)
    meet(w, b)
    w.add(say(b, f"I am faster than you. Let us race to {w.spot}!"), say(b, f"Nobody can beat me. Do you want to race to {w.spot}?", "asked"))
    w.add(say(a, "All right. One, two, three, go!"), say(a, "I will try."), f"{a.name} did not want to, but {a.he} agreed.")
    w.nl()
    w.add(f"{b.name} was ahead at once and laughed. But {b.he} did not watch the path, and {b.he} fell.", f"{b.name} was soon far ahead. Then {b.he} sat down to rest and fell asleep.", f"At first {b.name} was in front. But {b.he} kept looking back, and {b.he} ran into a bush.")
    w.fact("Who was ahead at first?", f"{b.name} was ahead at first.")
    if chance(0.5):
        w.add(f"{a.name} could have won. But {a.he} stopped and held out {a.his} hand.", f"{a.name} saw it and went back to help.")
        w.add(f"They came to {w.spot} side by side.", f"Together they walked the last steps to {w.spot}.")
        w.fact("Who won the race?", "Nobody won. They came in together.")
        end(w, "It is better to arrive with a friend than to win alone.", "Kindness is worth more than winning.")
    else:
        w.add(f"{a.name} kept going, step by step, and came to {w.spot} first.", f"Quietly, {a.name} passed {b.him} and touched {w.spot} first.")
        w.add(say(b, "You won. I should not have been so proud."), f"{b.name} was surprised, but {b.he} shook {a.name}'s hand.")
        w.fact("Who won the race?", f"{a.name} won the race.")
        end(w, "Slow and steady is better than fast and careless.", "Do not laugh too early.")


def dark(w):
    a, b = w.a, w.b
    opening(w, False)
    fear = P("the dark", "deep water", "thunder", "big dogs", "high places", "the old house on the hill")
    w.add(f"{a.name} had one secret: {a.he} was afraid of {fear}.", f"Nobody knew that {a.name} was afraid of {fear}.", f"There was only one thing {a.he} feared, and that was {fear}.")
    w.fact(f"What was {a.name} afraid of?", f"{a.name} was afraid of {fear}.")
    w.nl()
    meet(w, b)
    w.add(say(b, "Everybody is afraid of something."), say(b, "I was afraid of it, too, when I was little."), say(b, "You do not have to do it alone."))
    w.add(f"{b.name} took {a.him} by the hand, and they went a little closer.", f"So they tried it together, one small step at a time.", f"{b.name} told {a.him} to breathe slowly and count to ten.")
    w.add(f"{a.name}'s heart was beating fast, but {a.he} did not run away.", f"It was scary at first, but then {a.he} saw that nothing bad happened.")
    w.nl()
    w.add(f"The next time {a.he} was still a little afraid, but {a.he} smiled.", f"After that day, {a.name} was not so afraid any more.")
    w.fact(f"Who helped {a.name}?", f"{b.name} helped {a.name}.")
    end(w, "Being brave does not mean having no fear.", "A hand to hold makes fear smaller.", "Small steps lead far.")


def lie(w):
    a, b = w.a, w.b
    opening(w, False)
    thing = P("a window", "the big blue vase", "a plate", "the garden gate", "a lamp", "the clock in the hall")
    w.add(f"While {a.he} was playing, {a.he} broke {thing}.", f"Without looking, {a.he} ran too fast and broke {thing}.", f"There was a loud noise. {a.name} had broken {thing}.")
    w.fact(f"What did {a.name} break?", f"{a.name} broke {thing}.")
    w.add(f"When {b.desc} came and asked who had done it, {a.name} said, \"I do not know.\"", f"Soon {b.desc} came. \"Who did this?\" {b.he} asked. \"It was the wind,\" said {a.name}.")
    w.nl()
    w.add(f"But {a.name} could not eat and could not sleep.", f"All day {a.he} had a heavy feeling in {a.his} chest.", f"The lie felt like a stone in {a.his} shoe.")
    w.add(f"In the end {a.he} went to {b.name}. \"It was me,\" {a.he} said. \"I am sorry.\"", f"The next morning {a.he} told {b.name} the truth.")
    w.add(say(b, "Thank you for telling me. We can repair it together."), say(b, "I am glad that you told me the truth."), f"{b.name} was not angry. {b.He} smiled and fetched the tools.")
    w.fact(f"Did {a.name} tell the truth in the end?", f"Yes, {a.name} told {b.name} the truth.")
    end(w, "The truth is lighter than a lie.", "It takes courage to say sorry.", "Mistakes can be repaired.")


def gift(w):
    a, b, c = w.a, w.b, w.c
    opening(w, False)
    pres = P("a warm scarf", "a wooden box", "a picture", "a cake", "a small boat", "a song", "a basket of flowers", "a letter")
    w.add(f"The next day was {b.name}'s birthday, and {a.name} had no present.", f"{a.name} wanted to give {b.desc} a present, but {a.he} had no money.")
    w.fact("Whose birthday was it?" if "birthday" in w.t[-1] else f"Who was the present for?", f"It was {b.name}'s birthday." if "birthday" in w.t[-1] else f"The present was for {b.name}.")
    w.add(say(a, "What can I do?", "asked"), f"{a.He} thought and thought.", f"{a.He} asked {c.desc} what to do.")
    w.nl()
    w.add(f"Then {a.he} had an idea: {a.he} would make {pres} with {a.his} own hands.", f"\"I will make {pres}!\" {a.he} said.")
    w.fact(f"What did {a.name} make?", f"{a.name} made {pres}.")
    w.add(f"{a.He} worked the whole day, until {a.his} fingers hurt.", f"It took a long time, and two times {a.he} had to start again.", f"It was not perfect, but {a.he} did {a.his} best.")
    w.add(f"When {b.name} saw it, {b.his} eyes shone.", f"{b.name} was so happy that {b.he} could not speak.", f"\"This is the best present of all,\" said {b.name}.")
    end(w, "A present from the heart is worth more than gold.", "You do not need money to make someone happy.")


def journey(w):
    a, b = w.a, w.b
    opening(w, False)
    goal = P("the sea", "the highest mountain", "the big city", "the end of the rainbow", "the source of the river", "the island in the lake", "the northern lights")
    w.add(f"All {a.his} life {a.name} had wanted to see {goal}.", f"\"One day I will see {goal},\" {a.name} always said.", f"In an old book {a.he} had read about {goal}, and now {a.he} wanted to go there.")
    w.fact(f"What did {a.name} want to see?", f"{a.name} wanted to see {goal}.")
    w.add(f"So {a.he} packed some {w.food} and started.", f"{a.He} took a bag with {w.food} and left before sunrise.")
    w.nl()
    w.add("The way was long.", "On the first day it rained.", "Soon the road became steep.", "After two days the bag was empty.")
    meet(w, b)
    w.add(say(b, "Where are you going?", "asked"), say(b, "You look tired. Where do you want to go?", "asked"))
    w.add(say(a, f"I am going to see {goal}."), say(a, f"I am looking for {goal}."))
    w.add(say(b, "Then let me come with you."), say(b, "I know the way. Follow me."), say(b, "It is far, but two can walk farther than one."))
    w.nl()
    w.add(f"Together they walked for {P('three days', 'a week', 'many miles', 'two more days')}.", "They slept under the stars and told each other stories.", "They crossed a river and a wide plain.")
    w.add(f"And then they stood there and saw {goal}. It was more beautiful than {a.name} had ever dreamed.", f"At last they reached {goal}. {a.name} could not say a word.")
    w.fact(f"Who went with {a.name}?", f"{b.name} went with {a.name}.")
    end(w, "The way is easier with a friend.", "Whoever takes the first step can reach the goal.", "Dreams need strong feet.")


def stranger(w):
    a, b = w.a, w.b
    opening(w, False)
    w.add(f"A newcomer had moved to {w.p}: {b.desc}.", f"Nobody knew {b.desc}, who was new there.")
    w.add(f"The others did not speak to {b.him}, because {b.he} {P('spoke in a strange way', 'looked different', 'was very quiet', 'always wore a big hat')}.", f"Some were afraid of {b.him}, because {b.he} {P('looked different', 'lived alone', 'never laughed')}.")
    w.add(f"But {a.name} was curious and went over.", f"{a.name} thought that was not fair.")
    w.nl()
    w.add(say(a, f"Hello, my name is {a.name}. Would you like some {w.food}?", "asked"), say(a, "Do you want to play with us?", "asked"))
    w.add(f"{b.name} looked up in surprise and smiled.", f"For the first time {b.name} smiled.")
    sk = P("tell wonderful stories", "play the flute", "make kites", "bake the best bread", "whistle like a bird", "draw animals")
    w.add(f"It turned out that {b.name} could {sk}.", f"Soon everybody learned that {b.name} could {sk}.")
    w.fact(f"What could {b.name} do?", f"{b.name} could {sk}.")
    w.fact(f"Who was new?", f"{b.name} was new.")
    w.add(f"Now all the others wanted to meet {b.him}.", f"The others came closer, one by one.")
    end(w, "A stranger is a friend you do not know yet.", "One kind word can open a door.")


def treasure(w):
    a, b = w.a, w.b
    opening(w, False)
    w.add(f"Under {w.spot} {a.he} found an old map.", f"Inside an old bottle {a.he} found a map.", f"An old map fell out of a book.")
    meet(w, b)
    w.add(say(a, "Look, a treasure map!"), say(a, "Do you think there is gold?", "asked"))
    n = P("ten", "twenty", "thirty", "fifty", "a hundred")
    w.add(f"They followed the map. {cap(n)} steps to the north, then around {w.spot}.", f"The map said: {n} steps from {w.spot}, and then dig.")
    w.fact("How many steps did they have to go?", f"They had to go {n} steps.")
    w.nl()
    tr = P("old letters", "a box of seeds", "a toy ship", "a bag of colored stones", "a book of songs", "a silver whistle", "photos of a family")
    w.add(f"They dug for an hour. Then they found a small box. In it there was no gold, but {tr}.", f"Deep in the ground was a chest. They opened it and found {tr}.")
    w.fact("What did they find?", f"They found {tr}.")
    w.add(say(b, "That is not gold."), f"{b.name} was a little disappointed.", f"At first they did not know what to say.")
    w.add(say(a, "It is better than gold. It has a story."), say(a, "But nobody else in the world has this."), f"But the longer {a.name} looked, the more {a.he} liked it.")
    end(w, "Not every treasure shines.", "The best part of a treasure is the search.")


def work(w):
    a, b = w.a, w.b
    opening(w, False)
    job = P("build a bridge over the stream", "paint the fence", "clean the whole barn", "carry the wood home", "repair the roof", "pick all the apples", "dig a well")
    w.add(f"{a.name} had to {job}.", f"That day {a.he} wanted to {job}.", f"There was a lot to do: {a.he} had to {job}.")
    w.fact(f"What did {a.name} have to do?", f"{a.name} had to {job}.")
    w.add("It was too much work for one.", f"After an hour {a.he} was very tired.", f"{a.He} worked hard, but it went slowly.")
    w.nl()
    meet(w, b)
    w.add(say(a, "Can you help me?", "asked"), say(b, "That looks hard. May I help?", "asked"))
    w.add(f"{b.name} called {w.c.name}, and {w.c.name} called some more friends.", f"{b.name} went away and came back with {w.c.desc}.")
    w.add(f"{P('Everyone', 'Each of them')} did what {P('they', 'they')} could do best.", "Some carried, some held, and one of them sang.")
    w.add("Before evening the work was done.", "In a few hours everything was finished.")
    w.fact(f"Who helped {a.name}?", f"{b.name} and {w.c.name} helped {a.name}.")
    end(w, "Many hands make light work.", "Asking for help is not a weakness.")


def music(w):
    a, b = w.a, w.b
    opening(w, False)
    ins = P("the violin", "the flute", "the drum", "the piano", "the guitar", "the trumpet")
    w.add(f"{a.name} wanted to play {ins}.", f"More than anything {a.he} wanted to learn to play {ins}.")
    w.fact(f"What did {a.name} want to play?", f"{a.name} wanted to play {ins}.")
    w.add("At first it sounded terrible. Even the cat ran away.", "The first notes were so bad that the neighbors closed their windows.", f"{a.His} fingers would not do what they should.")
    w.add(f"{a.He} wanted to stop.", f"\"I will never learn it,\" {a.he} said.")
    w.nl()
    meet(w, b)
    w.add(say(b, "Play just one line each day."), say(b, "Nobody is born a master. Try it slowly."), say(b, "I like to listen. Play it again."))
    w.add(f"So {a.name} practiced every day, a little longer each time.", f"{a.name} took the advice and did not give up.")
    w.nl()
    w.add(f"In the spring there was a feast at {w.p}, and {a.name} played a whole song.", f"One year later {a.name} stood at {w.p} and played for everyone.")
    w.add("It was so still that you could hear the leaves. Then everybody clapped.", f"{b.name} clapped the loudest.")
    w.fact("Where did the concert take place?", f"It took place at {w.p}.")
    end(w, "Practice makes the difference.", "Every master was once a beginner.")


def storm(w):
    a, b = w.a, w.b
    w.w, w.wt = "stormy", "Dark clouds came over the hills"
    opening(w, chance(0.3))
    w.add("Soon the first drops fell, and the wind became strong.", "Then there was thunder, and it began to rain hard.")
    w.add(f"{a.name} ran to {w.spot}, but it was no good shelter.", f"{a.He} looked for a dry place.")
    w.nl()
    w.add(f"\"Come in!\" called a voice. It was {b.desc}, who lived nearby.", f"Then {a.he} saw a light. It was the little house of {b.desc}.")
    w.fact(f"Who helped {a.name} in the storm?", f"{b.name} helped {a.name}.")
    w.add(f"Inside it was warm. {b.name} gave {a.him} {w.food}.", f"{b.name} put wood on the fire and shared some {w.food}.")
    w.fact(f"What did {b.name} give {a.name}?", f"{b.name} gave {a.name} {w.food}.")
    w.add("They listened to the rain and told stories.", "While the storm went on, they played cards and laughed.", "They talked until the thunder was far away.")
    w.nl()
    w.add("In the morning the sky was clear, and everything shone.", "When it was over, a rainbow stood over the hills.")
    w.add(say(a, "Next time you must come to my house."), say(a, "Thank you for the warm fire."))
    end(w, "A warm house is best when it is shared.", "After every storm the sky is clear again.")


def big(w):
    a, b = w.a, w.b
    opening(w, False)
    w.add(f"{a.name} was unhappy because {a.he} was so small.", f"\"If only I were bigger,\" {a.name} often said.")
    w.fact(f"Why was {a.name} unhappy?", f"{a.name} wanted to be bigger.")
    w.add(f"The others could {P('reach the apples', 'jump over the stream', 'look over the wall')}, but {a.he} could not.")
    w.nl()
    w.add(f"Then {b.desc} came running. \"{P('My key', 'My ring', 'My coin')} fell into a crack under {w.spot}, and nobody can get it out!\"", f"One day {b.desc} lost something in a narrow hole near {w.spot}. No one could reach it.")
    w.add(say(a, "Let me try."), f"{a.name} looked at the hole. It was just wide enough.")
    w.add(f"{a.He} slipped in, and a moment later {a.he} was back with it.", f"Because {a.he} was so small, {a.he} could do it.")
    w.fact(f"How could {a.name} help?", f"{a.name} was small enough to reach it.")
    w.add(say(b, "How good that you are small!"), f"Everyone cheered, and {a.name} stood very tall.")
    end(w, "Everyone is good for something.", "Being small can be a strength.")


PLOTS = [lost, share, rescue, grow, race, dark, lie, gift, journey, stranger, treasure, work, music, storm, big]


def story():
    w = W()
    P(*PLOTS)(w)
    out = []
    for x in w.t:
        out.append(x)
    t = " ".join(out).replace(" \n ", "\n\n").replace("\n ", "\n\n").replace(" \n", "")
    return w, t


def k_story():
    w, t = story()
    if chance(0.25):
        return [(t + "<|endoftext|>", True)]
    a, b = w.a, w.b
    title = P(f"a {w.o}", f"{an(a.kind)} and {an(b.kind)}", f"{a.name} and {b.name}", f"{an(a.adj)} {a.kind}")
    ask = P(f"Tell me a story about {an(a.kind)}.", f"Write a short story about {a.name} and {b.name}.", f"Can you tell me a story that happens near {w.p}?", f"Write a story about {title}.", "Tell me a short story.", "Tell me a story.", f"I would like to hear a story about {an(a.kind)} and {an(b.kind)}.", f"Please write a story for children about {an(a.kind)} named {a.name}.", "Tell me a bedtime story.", f"Write a short story about {an(a.adj + ' ' + a.kind)}.", "Write a short story with a happy ending.", "Make up a little story for me.")
    turns = [("user", ask), ("assistant", t)]
    if chance(0.35):
        for q, x in Q.R.sample(w.f, min(len(w.f), P(1, 1, 2, 3))):
            turns += [("user", q), ("assistant", x)]
    return Q.chat(turns, P(*Q.SYS))


def k_storyread():
    w, t = story()
    fs = Q.R.sample(w.f, min(len(w.f), P(1, 2, 3)))
    if chance(0.12):
        fs.insert(0, (P("What is the name of the king?", "How old is the moon in the story?", "Which train did they take?", "What was the name of the teacher?"), "The text does not say."))
    q, x = fs[0]
    turns = [("user", P(f"{t}\n\n{q}", f"Read the story and answer the question.\n\n{t}\n\nQuestion: {q}", f"Text: {t}\n\nQuestion: {q}")), ("assistant", x)]
    for q, x in fs[1:]:
        turns += [("user", q), ("assistant", x)]
    return Q.chat(turns, P(*Q.SYS))


if __name__ == "__main__":
    Q.R.seed(int(sys.argv[2]))
    for _ in range(int(sys.argv[1])):
        print(story()[1], "\n")
