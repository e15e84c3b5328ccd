"""Prompts for the teacher. Four kinds: templates over topic tables, small-talk openers with several turns, turns that the
teacher invents itself (only the user header is forced), and openings of plain text. All tables are own work."""
import random

TOPICS = """the sea|the moon|the sun|the stars|rain|snow|wind|thunderstorms|rainbows|rivers|lakes|mountains|volcanoes|earthquakes|deserts|forests|rainforests|islands|caves|glaciers|waterfalls|the seasons|spring|summer|autumn|winter|clouds|the sky|the ocean floor|coral reefs|tides|gravity|light|sound|heat|electricity|magnets|atoms|energy|time|space|planets|Mars|Jupiter|Saturn|comets|black holes|galaxies|the Milky Way|rockets|satellites|astronauts|telescopes|microscopes|
dogs|cats|horses|cows|sheep|pigs|chickens|ducks|owls|eagles|penguins|parrots|whales|dolphins|sharks|octopuses|crabs|turtles|frogs|snakes|lizards|spiders|ants|bees|butterflies|elephants|lions|tigers|bears|wolves|foxes|rabbits|mice|monkeys|gorillas|giraffes|zebras|camels|kangaroos|koalas|pandas|bats|squirrels|hedgehogs|dinosaurs|fish|birds|insects|mammals|reptiles|
trees|flowers|grass|mushrooms|seeds|roots|leaves|roses|sunflowers|oak trees|apples|bananas|oranges|strawberries|tomatoes|potatoes|carrots|onions|rice|wheat|corn|bread|cheese|milk|butter|eggs|honey|sugar|salt|chocolate|coffee|tea|soup|salad|pizza|pasta|cake|cookies|ice cream|breakfast|cooking|baking|gardening|farming|vegetables|fruit|nuts|spices|
the heart|the brain|the lungs|bones|muscles|skin|blood|sleep|dreams|breathing|exercise|running|swimming|walking|cycling|yoga|stretching|healthy eating|drinking water|vitamins|teeth|eyes|ears|memory|stress|relaxation|laughter|crying|fear|anger|happiness|sadness|love|friendship|trust|honesty|kindness|patience|courage|curiosity|creativity|hope|gratitude|respect|fairness|freedom|responsibility|teamwork|leadership|family|parents|grandparents|children|babies|brothers and sisters|neighbors|teachers|doctors|nurses|farmers|firefighters|police officers|pilots|sailors|artists|musicians|writers|scientists|engineers|builders|bakers|
school|homework|reading|writing|books|libraries|museums|poems|stories|fairy tales|history|geography|mathematics|numbers|fractions|geometry|algebra|statistics|science|physics|chemistry|biology|astronomy|psychology|economics|philosophy|languages|English|grammar|spelling|vocabulary|alphabets|maps|calendars|clocks|money|banks|saving money|budgets|taxes|trade|markets|shops|prices|work|jobs|job interviews|offices|meetings|emails|letters|newspapers|radio|television|films|theater|photography|painting|drawing|sculpture|pottery|music|singing|dancing|guitars|pianos|violins|drums|orchestras|jazz|
cars|trains|bicycles|buses|airplanes|boats|ships|bridges|tunnels|roads|cities|villages|houses|castles|towers|lighthouses|farms|gardens|parks|beaches|harbors|airports|hotels|camping|hiking|fishing|traveling|holidays|birthdays|weddings|festivals|games|chess|puzzles|football|basketball|tennis|baseball|skiing|skating|climbing|surfing|toys|dolls|kites|balloons|
computers|the internet|phones|robots|software|programming|artificial intelligence|data|passwords|keyboards|cameras|batteries|solar power|wind power|recycling|pollution|climate change|the greenhouse effect|fossil fuels|water|air|fire|ice|sand|rocks|gold|silver|iron|glass|paper|plastic|wood|cotton|wool|leather|paint|soap|candles|mirrors|umbrellas|shoes|hats|clothes|furniture|chairs|lamps|clocks and watches|kitchens|tools|hammers|wheels|engines|machines|
ancient Egypt|ancient Rome|ancient Greece|the Middle Ages|knights|pirates|kings and queens|explorers|the printing press|the steam engine|the telephone|the light bulb|the wheel|democracy|laws|elections|the United Nations|France|Italy|Spain|Germany|Japan|China|India|Brazil|Canada|Mexico|Kenya|Australia|Egypt|Norway|Greece|the Amazon|the Nile|the Sahara|the Alps|Mount Everest|Paris|London|Rome|Tokyo|New York|Africa|Asia|Europe|Antarctica|the Arctic|
photosynthesis|evolution|cells|DNA|genes|bacteria|viruses|vaccines|medicine|hospitals|first aid|evaporation|the water cycle|the food chain|hibernation|migration|camouflage|pollination|ecosystems|habitats|endangered animals|fossils|minerals|magnetism|friction|speed|density|pressure|temperature|weather forecasts|hurricanes|tornadoes|floods|droughts|fog|frost|dew|shadows|echoes|colors|shapes|circles|triangles|symmetry|patterns|maps of the world|the equator|time zones|leap years|the calendar|the human body|the five senses|taste|smell|touch|hearing|sight""".replace("\n", "").split("|")

ACTIVITIES = """learn a new language|save money|sleep better|make new friends|bake bread|grow tomatoes|train a puppy|take care of a cat|write a short story|read more books|study for an exam|prepare for a job interview|write a thank-you letter|clean my room|organize my desk|plan a birthday party|pack for a trip|learn to swim|start running|eat healthier|drink more water|cook rice|make a good soup|make tea|make pancakes|plant a tree|start a garden|keep a diary|take better photos|draw a face|play the guitar|learn to sing|speak in public|be more confident|stay calm|deal with stress|stop worrying|apologize to a friend|help a sad friend|say no politely|be a good neighbor|be a better listener|use less plastic|save energy at home|stay warm in winter|stay cool in summer|fix a flat tire|clean a window|wash a wool sweater|remove a stain|choose a book|choose a gift for my mother|write an email to my boss|ask for a raise|work from home|manage my time|set goals|build good habits|break a bad habit|remember names|improve my memory|learn mathematics|do mental arithmetic|understand fractions|improve my handwriting|spell difficult words|learn history|start a small business|sell old things|find a hobby|meditate|stretch in the morning|lose weight safely|get up earlier|spend less time on my phone|choose a strong password|stay safe online|teach a child to read|tell a bedtime story|entertain children on a rainy day|have fun without spending money|plan a picnic|go camping|climb a mountain safely|ride a bicycle|drive in the rain|travel by train|prepare for a storm|treat a small cut|help someone who feels sick|care for houseplants|feed birds in winter|build a birdhouse|make a paper boat|fold a paper airplane|make a kite|paint a wall|decorate a small room|move to a new city|start a conversation|write a poem|give a speech|organize a meeting|work in a team|settle an argument|forgive someone|be more patient|be more creative|solve a puzzle|play chess|win a race|enjoy a museum|learn about the stars|watch birds|swim in the sea|find my way without a map|cook for many guests|make a healthy breakfast|pack a school lunch|store vegetables|make jam""".replace("\n", "").split("|")

CHARS = """girl|boy|old man|old woman|farmer|sailor|fisherman|baker|teacher|painter|king|queen|prince|princess|knight|wizard|witch|dragon|giant|robot|astronaut|pirate|shepherd|gardener|carpenter|musician|clockmaker|librarian|postman|doctor|inventor|explorer|traveler|merchant|soldier|thief|cook|tailor|shoemaker|lighthouse keeper|fox|rabbit|bear|wolf|mouse|cat|dog|puppy|kitten|duck|goose|hen|owl|crow|eagle|sparrow|turtle|frog|fish|whale|dolphin|crab|snail|ant|bee|butterfly|spider|hedgehog|squirrel|badger|deer|horse|donkey|cow|goat|sheep|lion|tiger|elephant|monkey|giraffe|zebra|penguin|seal|ghost|fairy|elf|dwarf|mermaid|snowman|scarecrow|tree|cloud|star|moon|river|train|boat|lamp|clock|kite|teapot|violin|book|shoe|umbrella|mirror|doll|toy soldier""".split("|")
ADJ = """small|brave|shy|clever|sleepy|kind|curious|cheerful|quiet|proud|gentle|stubborn|lonely|greedy|lazy|honest|clumsy|forgetful|wise|young|old|poor|rich|happy|sad|angry|hungry|lost|tired|strange|famous|tiny|huge|playful|patient|nervous|jealous|generous|careless|careful|silly|serious|friendly|grumpy|hopeful|blind|invisible|magical|talking|flying""".split("|")
DEEDS = """finds a hidden door|loses something precious|wants to see the sea|learns to share|is afraid of the dark|makes a new friend|gets lost in the forest|tells a lie|saves a village|finds a map|builds a boat|wants to fly|learns to be patient|meets a stranger|wins a race|loses a race|helps an enemy|keeps a secret|breaks a promise|finds a treasure|plants a seed|cannot sleep|wants to be bigger|moves to a new town|goes on a long journey|finds an old book|hears a strange sound|rescues a bird|misses home|learns a song|paints a picture|bakes a magic cake|finds a letter in a bottle|fixes an old clock|discovers a cave|crosses a bridge|climbs a mountain|gets a surprise gift|forgets a birthday|says sorry|learns to swim|starts a garden|sees a falling star|finds a lost child|is caught in a storm|travels to the moon|opens a small shop|learns to read|wants to become a king|teaches others to dance""".split("|")
NOUNS = """apple|arrow|bag|ball|basket|bell|bird|blanket|boat|book|bottle|box|bread|bridge|broom|brush|bucket|button|cake|candle|chair|circle|clock|cloud|coat|coin|cup|door|dream|drum|egg|feather|fence|field|fire|flag|flower|forest|garden|gate|gift|glass|glove|hat|hill|honey|horse|house|ice|island|jar|key|king|kite|knife|ladder|lake|lamp|leaf|letter|light|map|market|mirror|moon|mountain|mouse|music|nest|net|night|ocean|owl|paint|paper|path|pencil|piano|pie|pillow|pond|pot|rain|ribbon|ring|river|road|rock|roof|rope|rose|sand|school|seed|shadow|sheep|shell|ship|shoe|smile|snow|song|soup|spoon|star|stone|storm|story|street|sugar|sun|table|tea|tent|tiger|tower|train|tree|umbrella|valley|village|voice|wall|watch|water|wheel|whistle|wind|window|wing|winter|wood|wool""".split("|")
VERBS = """ask|bake|borrow|break|build|buy|carry|catch|climb|cook|count|cross|cry|cut|dance|dig|draw|drink|drop|eat|explain|fall|find|fix|fly|follow|forget|forgive|give|grow|hear|help|hide|hold|hope|jump|keep|knock|laugh|learn|leave|lend|lift|listen|look|lose|make|meet|miss|move|open|paint|plant|play|pour|promise|pull|push|read|remember|rest|return|ride|run|sail|save|search|sell|send|share|shout|sing|sleep|smile|speak|stop|swim|take|teach|thank|think|throw|touch|travel|try|turn|visit|wait|wake|walk|wash|watch|whisper|win|wish|wonder|work|write""".split("|")
PEOPLE = "my friend|my mother|my father|my sister|my brother|my teacher|my neighbor|my boss|a colleague|my grandmother|my grandfather|a customer|a new student|my cousin|the mayor|a librarian|my doctor|my roommate".split("|")
FEEL = "sad|tired|happy|nervous|lonely|angry|bored|stressed|excited|afraid|confused|disappointed|jealous|proud|homesick|sleepy|worried|grateful|curious|embarrassed".split("|")
THINGS = "animals that live in the sea|fruits|vegetables|colors|countries in Europe|countries in Africa|countries in Asia|musical instruments|kinds of weather|things in a kitchen|things to do on a rainy day|jobs|sports|farm animals|wild animals|birds|trees|flowers|planets|school subjects|ways to relax|healthy snacks|things to take on a trip|hobbies|board games|means of transport|pieces of furniture|pieces of clothing|feelings|rules for a classroom|ways to save water|ways to be kind|breakfast ideas|names for a dog|names for a boat|titles for a story about a lighthouse|gifts for a friend|uses for an old box|questions to ask a new friend|things that are round|things that are cold|things that make a sound|reasons to read|reasons to exercise|good habits|famous inventions|parts of the body|parts of a tree|kinds of music|summer activities|winter activities".split("|")
SHORT = ["", "", "", " Answer in one sentence.", " Answer in two or three sentences.", " Keep it short.", " Use simple words.", " Be brief.", " Explain it to a child.", " Please use short sentences.", " Answer in one short paragraph."]

T_TOPIC = ["Tell me about {t}.", "What is {t}?", "Tell me something about {t}.", "Explain {t}.", "Explain {t} in simple words.", "Can you explain {t} to me?", "Why is {t} important?", "What do you know about {t}?", "Give me three facts about {t}.", "Tell me an interesting fact about {t}.", "Describe {t}.", "Write a short paragraph about {t}.", "What should I know about {t}?", "What is interesting about {t}?", "How would you describe {t} to a friend?", "I want to learn about {t}. Where do I start?", "What are the most important things about {t}?", "Write two sentences about {t}.", "What do people like about {t}?", "Teach me something new about {t}.", "What can we learn from {t}?", "Write a few sentences about {t}.", "How does {t} affect people?", "Give me a short introduction to {t}.", "What are some common questions about {t}, and what are the answers?"]
T_ACT = ["How can I {a}?", "How do I {a}?", "What is the best way to {a}?", "Give me some tips to {a}.", "I want to {a}. What should I do first?", "Can you help me {a}?", "I would like to {a}. Any advice?", "What do I need to {a}?", "Explain step by step how to {a}.", "Is it hard to {a}?", "Give me three tips to {a}.", "Why should I {a}?"]
T_STORY = ["Write a short story about {c}.", "Tell me a story about {c}.", "Tell me a short story about {c} who {d}.", "Write a story about {c} who {d}.", "Write a short story in which {c} {d}.", "Tell me a bedtime story about {c}.", "Write a very short story about {c} and {c2}.", "Can you tell me a story about {c} and {c2}?", "Write a fable about {c} and {c2}. End with a moral.", "Write a short story that uses the words {n1}, {n2} and {v1}.", "Write a simple story for children with the words {n1}, {v1} and {n2}.", "Write the beginning of a story about {c}.", "Write a funny story about {c}.", "Tell me a story that starts with a {n1} and ends with a {n2}.", "Write a short adventure about {c} who {d}."]
T_MISC = ["Write a short poem about {t}.", "Write a poem about a {n1} and a {n2}.", "What is the difference between {t} and {t2}?", "Compare {t} and {t2}.", "Which is better, {t} or {t2}?", "List five {th}.", "Name three {th}.", "Give me some {th}.", "Can you name some {th}?", "Write a short email to {p} about {t}.", "Write a short message to {p} to say thank you.", "Write a letter to {p} about {t}.", "Write a short dialogue between {c} and {c2} about {t}.", "Write a conversation between two friends about {t}.", "What does the word \"{w}\" mean?", "Use the word \"{w}\" in a sentence.", "Write three sentences with the word \"{w}\".", "I feel {f}. What should I do?", "I am {f} today.", "My friend is {f}. How can I help?", "What makes people feel {f}?", "Describe a {n1}.", "What can you do with a {n1}?", "What would happen if there was no {n1}?", "Imagine you are {c}. Describe your day.", "Describe a day at {pl}.", "Write a riddle about a {n1}.", "Tell me a joke about {t}.", "Give me a title for a book about {t}.", "Finish this sentence: If I had a {n1}, I would", "What is your favorite thing about {t}?", "Do you like {t}?", "What is the opposite of {f}?", "Write a short speech about {t}.", "Write a short diary entry of {c}.", "Give me a quote about {t}.", "Why do people {v1}?", "When do people {v1}?", "Summarize the most important ideas about {t} in two sentences.", "Write a short news report about {c} who {d}.", "Give advice to someone who wants to {a}."]
PLACES = "the beach|the zoo|a farm|the market|school|the library|a train station|the mountains|a small village|a big city|the museum|a lighthouse|the park|an airport|a bakery|the forest|a castle|a circus|a hospital|the harbor".split("|")
TALK = ["Hi!", "Hello!", "Hello, how are you?", "Good morning!", "Good evening!", "Hey, what's up?", "Hi there. Can we talk?", "I had a long day.", "I just came home from work.", "I am bored.", "It is raining here.", "It is a beautiful day.", "I have a new dog.", "I have a test tomorrow.", "I am going on a trip.", "I need some advice.", "Can you help me with something?", "I want to tell you something.", "Let's talk about {t}.", "I love {t}.", "I don't like {t}.", "I have a question about {t}.", "I am learning about {t}.", "Yesterday I saw {c}.", "Guess what I did today!", "I want to {a}.", "I am trying to {a}.", "Do you have a favorite book?", "What should I cook tonight?", "What should I do this weekend?", "I can't sleep.", "I am hungry.", "My friend is angry with me.", "I made a mistake at work.", "I am feeling {f}.", "Thank you for your help.", "Tell me something interesting.", "Can you recommend a hobby?", "Let's play a game.", "I read a book about {t}."]
TEXT = ["Once upon a time", "Once upon a time, there was {c}", "One day, {c}", "It was a cold night", "The {n1} was", "{T} is", "{T} are", "Long ago, in a small village,", "In the morning,", "When I was young,", "The old {n1}", "There is something special about {t}.", "Most people think that {t}", "Every year,", "Today we will learn about {t}.", "The history of {t}", "A guide to {t}", "How to {a}", "My grandmother always said", "She opened the door and", "He looked at the {n1} and", "The road to the {n1}", "Nobody in the town knew", "The first thing you should know about {t} is", "If you want to {a},"]
SYSTEMS = ["You are a helpful assistant.", "You are a helpful assistant. You answer in simple, clear and short sentences.", "You are a friendly assistant who gives short and correct answers.", "You are a kind teacher. You explain things clearly with simple words.", "You are a helpful and honest assistant. Answer briefly in plain English."]
MAGPIE = ["You are a helpful assistant.", "You are a helpful assistant.", "You are a helpful assistant. The user asks simple everyday questions and you answer in a few clear sentences.", "You are a friendly assistant. The user makes small talk and you answer in one or two sentences.", "You are a teacher. The user asks questions about nature, science and history, and you give short and simple answers.", "You are a storyteller. The user asks for short stories and you write simple stories for children.", "You are an assistant who gives advice about daily life, food, health, work, family and friends.", "You are a helpful assistant. The user asks for short texts: letters, messages, descriptions and poems.", "You are a helpful assistant. The user asks general knowledge questions and you answer with short facts.", "You are a helpful assistant. The user asks how things work and you explain them in plain language.", "You are a helpful assistant who answers questions about animals, plants, places and people.", "You are a helpful assistant that helps with writing and summarizing short texts."]


def fill(r, s):
    a = lambda w: ("an " if w[0] in "aeiou" else "a ") + w

    def char():
        return a(r.choice(ADJ) + " " + r.choice(CHARS)) if r.random() < 0.7 else a(r.choice(CHARS))

    t, n1, n2 = r.choice(TOPICS), r.choice(NOUNS), r.choice(NOUNS)
    return s.format(t=t, T=t[0].upper() + t[1:], t2=r.choice(TOPICS), a=r.choice(ACTIVITIES), c=char(), c2=char(), d=r.choice(DEEDS), n1=n1, n2=n2, v1=r.choice(VERBS),
                    w=r.choice(NOUNS + VERBS + ADJ), p=r.choice(PEOPLE), f=r.choice(FEEL), th=r.choice(THINGS), pl=r.choice(PLACES))


def one(r):
    """-> (pieces [(text, recorded?)], sampled turns, first sampled role (0 assistant, 1 user), temperature)"""
    x = r.random()
    temp = r.choice([0.4, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9])
    if x < 0.20:  # the teacher invents the user turn
        sys = r.choice(MAGPIE)
        return [(f"<|im_start|>system\n{sys}<|im_end|>\n", False), ("<|im_start|>user\n", True)], r.choice([2, 2, 2, 2, 4]), 1, temp
    if x < 0.27:  # plain text
        return [("<|endoftext|>", False), (fill(r, r.choice(TEXT)), True)], 1, 0, temp
    sys = r.choice(SYSTEMS)
    turns = 1
    if x < 0.52:
        u = fill(r, r.choice(T_TOPIC)) + r.choice(SHORT)
        turns = r.choice([1, 1, 1, 1, 3])
    elif x < 0.64:
        u = fill(r, r.choice(T_ACT)) + r.choice(SHORT)
        turns = r.choice([1, 1, 1, 1, 3])
    elif x < 0.80:
        u = fill(r, r.choice(T_STORY)) + r.choice(["", "", "", " Use simple words.", " Keep it short.", " Write about five sentences.", " Make it about one hundred words long."])
    elif x < 0.97:
        u = fill(r, r.choice(T_MISC)) + r.choice(SHORT)
    else:
        u = fill(r, r.choice(TALK))
        sys = "You are a friendly assistant. You talk with the user and answer in one or two short sentences."
        turns = r.choice([1, 3, 3, 5])
    show = r.random() < 0.12
    return [(f"<|im_start|>system\n{sys}<|im_end|>\n", show), (f"<|im_start|>user\n{u}<|im_end|>\n<|im_start|>assistant\n", True)], turns, 0, temp


# ids >= 49152 in what is recorded: nothing, and the (empty) think block that follows an assistant header
NOTHING, THINK = 49152, 49153


def build(tt, n, seed, width=96):
    """-> pool for teacher.Generator (numpy); the prompt is what is forced before the first sampled token"""
    import numpy as np

    r = random.Random(seed)
    feed, rec = np.zeros((n, width), np.int64), np.full((n, width), NOTHING, np.int64)
    length, turns, first, temp, temp_user = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.float32), np.zeros(n, np.float32)
    limit = np.zeros(n, np.int64)  # after so many sampled tokens an answer ends at a line break
    i = 0
    while i < n:
        parts, t, f, te = one(r)
        ids, rc = [], []
        for text, keep in parts:
            e = tt.encode(text).ids
            ids += e
            rc += e if keep else [NOTHING] * len(e)
            if text.endswith("assistant\n"):
                rc[-1] = THINK
        if len(ids) > width:
            continue
        feed[i, : len(ids)], rec[i, : len(ids)] = ids, rc
        length[i], turns[i], first[i], temp[i], temp_user[i] = len(ids), t, f, te, r.choice([0.7, 0.8, 0.9, 1.0])
        limit[i] = r.choice([30, 45, 60, 80, 110, 150, 200])
        i += 1
    return dict(feed=feed, rec=rec, length=length, turns=turns, first=first, temp=temp, temp_user=temp_user, limit=limit)


def headers(tt):
    """What is forced after a sampled <|im_end|>: [into an assistant turn, into a user turn]"""
    import numpy as np

    a, u = tt.encode("\n<|im_start|>assistant\n").ids, tt.encode("\n<|im_start|>user\n").ids
    w = max(len(a), len(u))
    feed, rec = np.zeros((2, w), np.int64), np.zeros((2, w), np.int64)
    feed[0, : len(a)], rec[0, : len(a)] = a, a[:-1] + [THINK]
    feed[1, : len(u)], rec[1, : len(u)] = u, u
    return dict(feed=feed, rec=rec, len=np.array([len(a), len(u)]))
