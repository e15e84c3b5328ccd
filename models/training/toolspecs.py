"""Tools for the tool dialogues. A spec is (names, description, {parameter: (type, description, value maker, other names)}, requests, result
maker, answers). In requests and answers {p} is the value of parameter p, and {r} in answers is the value of the result. Own work.

Held out for tests: HELD (neither these names nor these kinds of request are in training)."""
import procedural as Q
from procedural import P, chance

CONS = "b c d f g h j k l m n p r s t v w z br ch cl cr dr fl gl gr kr pl pr sh sk sl sn sp st th tr".split()
VOW = "a e i o u a e i o ai ea ee oa ou".split()
ENDS = ["", "", "", "n", "r", "s", "l", "m", "x", "t", "k", "nd", "rt", "sh", "ck", "p"]


def word(n=None):
    """a made-up word"""
    return "".join(P(*CONS) + P(*VOW) for _ in range(n or P(1, 2, 2, 2, 3))) + P(*ENDS)


def code():
    """a made-up identifier such as K7-301 or qx93b"""
    al = P("ABCDEFGHJKLMNPQRSTUVWXYZ", "abcdefghijkmnpqrstuvwxyz")
    r = Q.R
    x = "".join(r.choice(al) for _ in range(r.randint(1, 3)))
    y = "".join(r.choice("0123456789") for _ in range(r.randint(2, 5)))
    return P(x + y, x + "-" + y, y + x, f"{x}{y[:2]}-{y[2:]}{r.choice(al)}" if len(y) > 2 else x + y)


LENDABLE = "umbrella rake jacket kettle tent drill globe helmet pillow rug vase stool mop".split()


def phrase():
    return P(f"{P(*Q.ADJ)} {P(*Q.OBJ)}", f"{P(*Q.COLORS)} {P(*Q.OBJ)}", f"the {P(*Q.ADJ)} {P(*Q.PETS)}", f"{P(*Q.FOODS)} with {P(*Q.FOODS)}", f"my {P(*Q.OBJ)} and the {P(*LENDABLE)}", f"{Q.name()}'s {P(*Q.OBJ)}", f"{word()} {P(*Q.OBJ)}", f"{P(*Q.HOBBY)} in {P(*Q.CITY)}", f"how to fix a {P(*Q.OBJ)}", f"{word()} and {word()}")


def sentence():
    n = Q.name()
    return P(f"I will be there at {clock()}", f"the {P(*Q.OBJ)} is {P(*Q.WHERE)}", f"{n} is waiting {P(*Q.WHERE)}", f"please bring {P(*Q.FOODS)}", "good luck tomorrow", f"we meet on {P(*Q.DAYS)}", f"the code is {code()}", f"do not forget the {P(*Q.OBJ)}", f"I am in {P(*Q.CITY)} until {P(*Q.DAYS)}", f"{n} found your {P(*Q.OBJ)}", f"the {P(*Q.PETS)} is fine", f"can you call {n}")


clock = lambda: f"{Q.R.randint(0, 23)}:{Q.R.randint(0, 59):02d}" if chance(0.4) else f"{Q.R.randint(6, 22)}:{P('00', '15', '30', '45')}"
date = lambda: f"{P(*Q.MONTHS)} {Q.R.randint(1, 28)}"
num = lambda a, b: (lambda: Q.R.randint(a, b))
place = lambda: P(P(*Q.CITY), P(*Q.CITY), word().capitalize(), word(2).capitalize() + P("ton", "ville", "burg", " Bay", " Hill", "field"))
room = lambda: P("kitchen", "bedroom", "hall", "garage", "office", "cellar", "bathroom", "attic", "living room", "workshop")
mail = lambda: f"{P(word(), Q.name().lower())}@{word()}.{P('com', 'org', 'net')}"
fname = lambda: f"{P(word(), P(*Q.OBJ), 'notes', 'plan', 'list')}.{P('txt', 'md', 'csv', 'pdf', 'log')}"
one = lambda *a: (lambda: P(*a))
S, I = "string", "integer"
nm, it, dy = Q.name, (lambda: P(*Q.ITEMS)), (lambda: P(*Q.DAYS))

TRAIN = [
    ("get_forecast|forecast|weather_for_day|predict_weather", "Weather forecast for a place and a day.", dict(place=(S, "Place", place, "city|location|where"), day=(S, "Day of the week", dy, "weekday|when")), "What will the weather be like in {place} on {day}?|Will it rain in {place} on {day}?|Give me the forecast for {place} on {day}.|Is {day} going to be nice in {place}?", one("rain", "sun", "snow", "clouds", "wind"), "On {day} there will be {r} in {place}.|The forecast for {place}: {r}."),
    ("find_bus|bus_times|next_bus", "Find the next bus between two stops.", dict(start=(S, "Stop to start from", place, "from|origin|from_stop"), end=(S, "Stop to go to", place, "to|destination|to_stop")), "When is the next bus from {start} to {end}?|I need a bus from {start} to {end}.|How do I get from {start} to {end} by bus?", clock, "The next bus from {start} to {end} leaves at {r}."),
    ("start_timer|timer|set_timer|countdown", "Start a timer.", dict(minutes=(I, "Length in minutes", num(1, 120), "duration|length_min|mins")), "Set a timer for {minutes} minutes.|Start a timer of {minutes} minutes.|Wake me in {minutes} minutes.|Timer, {minutes} minutes, please.|Tell me when {minutes} minutes are over.", one("ok", "started"), "The timer is set for {minutes} minutes.|Done, {minutes} minutes from now."),
    ("set_alarm|alarm|wake_me", "Set an alarm clock.", dict(time=(S, "Time as HH:MM", clock, "at|when|hour"), day=(S, "Day of the week", dy, "weekday")), "Set an alarm for {time} on {day}.|Wake me up at {time} on {day}.|I have to get up at {time} on {day}.", one("ok", "set"), "The alarm is set for {time} on {day}."),
    ("send_email|mail|write_email|email", "Send an email.", dict(to=(S, "Address", mail, "address|recipient"), subject=(S, "Subject line", phrase, "title|topic")), "Send an email to {to} with the subject {subject}.|Write to {to} about {subject}.|Email {to}, subject: {subject}.", one("sent", "ok"), "I sent the email to {to}.|The email about {subject} is on its way."),
    ("call_person|phone_call|dial|ring", "Call somebody.", dict(person=(S, "Name of the person", nm, "name|who|contact")), "Call {person}.|Please ring {person} for me.|I want to talk to {person} on the phone.|Can you phone {person}?", one("ringing", "no answer"), "Calling {person}: {r}.|I called {person}. It says: {r}."),
    ("add_to_list|shopping_add|list_add", "Put a thing on the shopping list.", dict(item=(S, "The thing", lambda: P(P(*Q.FOODS), phrase(), P(*Q.ITEMS)), "thing|product|entry"), amount=(I, "How many", num(1, 40), "count|number|quantity")), "Put {amount} {item} on the shopping list.|Add {amount} {item} to my list.|We need {amount} {item}, please write it down.", one("ok", "added"), "{item} is on the list now.|I wrote down {amount} {item}."),
    ("delete_file|remove_file|rm", "Delete a file.", dict(path=(S, "File to delete", fname, "file|filename|target")), "Delete {path}.|Please remove the file {path}.|I do not need {path} any more, throw it away.", one("deleted", "ok"), "The file {path} is deleted.|{path} is gone."),
    ("copy_file|duplicate|cp", "Copy a file.", dict(source=(S, "File to copy", fname, "from|src|original"), target=(S, "Name of the copy", fname, "to|dst|copy")), "Copy {source} to {target}.|Make a copy of {source} and call it {target}.|Duplicate {source} as {target}.", one("ok", "copied"), "I copied {source} to {target}."),
    ("create_note|note|save_note|write_note", "Save a note.", dict(text=(S, "The note", sentence, "content|body|note")), "Make a note: {text}.|Note that {text}.|Write down: {text}.|Save this as a note: {text}.", num(1, 900), "I saved the note.|Saved as note {r}."),
    ("get_population|population|count_people", "Number of people who live in a place.", dict(place=(S, "Town or city", place, "city|town|location")), "How many people live in {place}?|What is the population of {place}?|Is {place} a big town?", num(900, 900000), "{r} people live in {place}.|{place} has {r} people."),
    ("random_number|rand|pick_number", "Pick a random number.", dict(low=(I, "Smallest number", num(0, 20), "min|from|minimum"), high=(I, "Largest number", num(21, 999), "max|to|maximum")), "Pick a random number between {low} and {high}.|Give me any number from {low} to {high}.|Choose a number between {low} and {high}.", num(21, 30), "The number is {r}.|I picked {r}."),
    ("open_app|launch|start_program|run_app", "Open a program.", dict(app=(S, "Name of the program", lambda: P("calendar", "camera", "mail", "maps", "notes", word(), word().capitalize()), "name|program|application")), "Open {app}.|Start the program {app}.|Launch {app}, please.|I want to use {app}.", one("ok", "opened"), "{app} is open.|I opened {app}."),
    ("set_volume|volume|loudness", "Set the volume of a speaker.", dict(speaker=(S, "Where the speaker is", room, "device|room|zone"), percent=(I, "0 to 100", num(0, 100), "level|value|volume")), "Set the {speaker} speaker to {percent} percent.|Volume {percent} in the {speaker}, please.|Make the music in the {speaker} {percent} percent loud.", one("ok", "set"), "The {speaker} speaker is at {percent} percent."),
    ("buy_ticket|ticket|get_ticket", "Buy a train ticket.", dict(to=(S, "Where to", place, "destination|city|goal"), day=(S, "Day of travel", dy, "date|when"), seats=(I, "Number of seats", num(1, 8), "count|people|passengers")), "Buy {seats} train tickets to {to} for {day}.|I need {seats} seats to {to} on {day}.|We are {seats} people and want to go to {to} on {day}. Get the tickets.", code, "Your tickets to {to} are booked: {r}.|Done. The booking number is {r}."),
    ("get_definition|meaning|word_info", "Explain a word.", dict(term=(S, "The word", lambda: P(word(), P(*Q.OBJ), P(*Q.JOBS)), "word|query|expression")), "What does {term} mean?|Give me the meaning of {term}.|I do not know the word {term}. What is it?", one("a kind of tool", "an old name for a place", "a small thing", "a type of plant"), "{term} means: {r}."),
    ("get_age|age_of|how_old", "Age of a person in the register.", dict(person=(S, "Name", nm, "name|who|of")), "How old is {person}?|Tell me the age of {person}.|What age is {person} now?", num(2, 99), "{person} is {r} years old."),
    ("find_phone|phone_number|lookup_phone", "Find a phone number.", dict(name=(S, "Person or shop", nm, "person|who|contact")), "What is the phone number of {name}?|Find the number of {name}.|How can I reach {name} by phone?", num(100000, 999999), "The number of {name} is {r}."),
    ("water_plants|irrigate|sprinkle", "Water the plants of a place.", dict(area=(S, "Which part", one("garden", "balcony", "greenhouse", "front yard", "roof"), "zone|place|part"), litres=(I, "How much water", num(1, 60), "amount|liters|volume")), "Give the {area} {litres} litres of water.|Water the {area} with {litres} litres.|The {area} is dry. Use {litres} litres.", one("ok", "done"), "The {area} got {litres} litres of water."),
    ("lend_thing|borrow|lend", "Write down that somebody borrows a thing.", dict(person=(S, "Who", nm, "who|name|borrower"), thing=(S, "What", lambda: P(*LENDABLE, *Q.OBJ), "item|object|what")), "{person} borrows the {thing}.|Write down that {person} has the {thing}.|I lent the {thing} to {person}.", one("ok", "noted"), "Noted: {person} has the {thing}."),
    ("book_table|reserve|reserve_table", "Book a table in a restaurant.", dict(restaurant=(S, "Name of the restaurant", lambda: P(word().capitalize(), f"The {P(*Q.COLORS).capitalize()} {P(*Q.OBJ).capitalize()}"), "name|place|where"), people=(I, "Number of people", num(1, 12), "guests|count|persons"), time=(S, "Time", clock, "at|when")), "Book a table for {people} at {restaurant} at {time}.|Reserve a table at {restaurant} for {people} people, {time}.|We are {people} and would like to eat at {restaurant} at {time}.", code, "Your table at {restaurant} is booked for {time}.|Done: {people} people, {time}."),
    ("unit_convert|convert_units|change_unit", "Convert a length or weight.", dict(value=(I, "The amount", num(1, 900), "amount|number|x"), unit_from=(S, "From unit", one("km", "cm", "kg", "feet"), "from|source_unit|src"), unit_to=(S, "To unit", one("miles", "inches", "pounds", "metres"), "to|target_unit|dst")), "How many {unit_to} are {value} {unit_from}?|Convert {value} {unit_from} to {unit_to}.|What is {value} {unit_from} in {unit_to}?", num(1, 2000), "{value} {unit_from} are about {r} {unit_to}."),
    ("post_message|say_in_room|chat_post", "Write a message into a chat room.", dict(channel=(S, "Chat room", lambda: P("general", "news", "family", word()), "room|group|to"), message=(S, "Text", sentence, "text|body|content")), "Write in {channel}: {message}.|Post this in {channel}: {message}.|Tell everyone in {channel} that {message}.", one("ok", "posted"), "Your message is in {channel}.|I posted it."),
    ("find_book|library_search|books_by", "Search the library.", dict(author=(S, "Author", nm, "writer|by|name")), "Which books did {author} write?|Find books by {author}.|Does the library have something by {author}?", num(0, 40), "There are {r} books by {author}.|The library has {r} books by {author}."),
    ("lock_door|door_lock|secure", "Lock a door.", dict(door=(S, "Which door", one("front door", "back door", "garage door", "cellar door", "balcony door"), "which|name|target")), "Lock the {door}.|Is the {door} locked? If not, lock it.|Please make sure that the {door} is locked.", one("locked", "ok"), "The {door} is locked."),
    ("get_distance|distance|how_far", "Distance between two places in km.", dict(a=(S, "First place", place, "from|start|place_1"), b=(S, "Second place", place, "to|end|place_2")), "How far is it from {a} to {b}?|What is the distance between {a} and {b}?|How many kilometres are there between {a} and {b}?", num(2, 4000), "It is {r} km from {a} to {b}.|The distance is {r} km."),
    ("order_food|food_order|deliver", "Order food.", dict(dish=(S, "What to eat", lambda: P(*Q.FOODS), "meal|food|item"), count=(I, "How many", num(1, 9), "amount|number|portions")), "Order {count} portions of {dish}.|We would like {dish}, {count} times.|Get us {count} {dish}, please.", num(10, 60), "Your order of {dish} comes in {r} minutes."),
    ("show_photo|photo|open_photo", "Show a photo by its number.", dict(number=(I, "Photo number", num(1, 9999), "id|photo_id|index")), "Show me photo {number}.|Open picture number {number}.|I want to see photo {number}.", one("shown", "ok"), "Here is photo {number}."),
    ("get_invoice|invoice|bill_status", "Status of a bill.", dict(invoice_id=(S, "Number of the bill", code, "id|number|ref")), "Is the bill {invoice_id} paid?|What is the status of invoice {invoice_id}?|Check bill {invoice_id}.", one("paid", "open", "late"), "The bill {invoice_id} is {r}."),
    ("trace_parcel|parcel_status|shipment", "Where is a parcel?", dict(code=(S, "Tracking code", code, "tracking|id|number")), "Where is my parcel {code}?|Track the package {code}.|Has {code} arrived?|My tracking code is {code}. Where is the parcel?", one("on the road", "in the depot", "delivered", "at the post office"), "The parcel {code} is {r}."),
    ("move_robot|robot_go|drive", "Move the robot.", dict(direction=(S, "Direction", one("left", "right", "forward", "back", "north", "south"), "dir|way|to"), steps=(I, "Number of steps", num(1, 50), "count|distance|n")), "Move the robot {steps} steps {direction}.|Robot, {steps} steps {direction}!|Let the robot go {direction} by {steps} steps.", one("ok", "blocked"), "The robot moved {steps} steps {direction}."),
    ("set_color|lamp_color|colour", "Set the color of a lamp.", dict(lamp=(S, "Which lamp", room, "room|which|light"), color=(S, "Color", lambda: P(*Q.COLORS), "colour|hue|value")), "Make the {lamp} lamp {color}.|Set the lamp in the {lamp} to {color}.|I want {color} light in the {lamp}.", one("ok", "set"), "The lamp in the {lamp} is {color} now."),
    ("vote|cast_vote|choose_option", "Vote for something.", dict(choice=(S, "What to vote for", lambda: P(phrase(), word(), Q.name()), "option|for|candidate")), "Vote for {choice}.|I vote for {choice}.|My choice is {choice}.", one("counted", "ok"), "Your vote for {choice} is counted."),
    ("get_score|score|match_result", "Result of a match.", dict(team=(S, "Team", lambda: P(place(), word().capitalize()), "club|name|side")), "How did {team} play?|What was the score of {team}?|Did {team} win?", lambda: f"{Q.R.randint(0, 6)}:{Q.R.randint(0, 6)}", "{team} played {r}."),
    ("create_user|new_user|register", "Make a new user account.", dict(username=(S, "User name", lambda: P(word(), code(), Q.name().lower()), "user|login|name"), email=(S, "Address", mail, "mail|address")), "Create the user {username} with the address {email}.|Register {username}, {email}.|Make an account for {username}. The email is {email}.", num(10, 9999), "The user {username} has the number {r}.|I created the account {username}."),
    ("set_key|store_value|put|remember", "Store a value under a key.", dict(key=(S, "Key", lambda: P(word(), code()), "name|id|field"), value=(S, "Value", lambda: P(word(), code(), str(Q.R.randint(1, 9999))), "val|content|data")), "Store {value} under {key}.|Set {key} to {value}.|Remember that {key} is {value}.|Save {value} as {key}.", one("ok", "stored"), "{key} is now {value}.|I stored it."),
    ("get_key|read_value|recall|fetch_value", "Read a stored value.", dict(key=(S, "Key", lambda: P(word(), code()), "name|id|field")), "What is stored under {key}?|Read {key}.|Give me the value of {key}.", lambda: P(word(), code()), "{key} is {r}.|The value of {key} is {r}."),
    ("search_recipes_by_time|quick_meals|meals", "Find meals that are quick to cook.", dict(max_minutes=(I, "Longest cooking time", num(5, 90), "minutes|limit|time")), "What can I cook in {max_minutes} minutes?|Find a meal that takes at most {max_minutes} minutes.|I have only {max_minutes} minutes to cook.", lambda: P(*Q.FOODS), "You could make {r}."),
    ("rename|rename_file|change_name", "Give a file another name.", dict(old=(S, "Old name", fname, "from|file|source"), new=(S, "New name", fname, "to|name|target")), "Rename {old} to {new}.|Call the file {old} {new} from now on.|Change the name of {old} to {new}.", one("ok", "renamed"), "{old} is now called {new}."),
    ("get_price|price_of|cost", "Price of a thing in the shop.", dict(product=(S, "The thing", lambda: P(phrase(), P(*Q.ITEMS), P(*Q.OBJ)), "item|article|name")), "How much is the {product}?|What does the {product} cost?|Tell me the price of {product}.", num(1, 300), "It costs {r} dollars.|The price is {r} dollars."),
]

HELD = [
    ("translate_text", "Translate a text into another language.", dict(text=(S, "The text", sentence, ""), language=(S, "Target language", one("French", "Spanish", "German", "Italian", "Polish", "Turkish"), "")), "Translate into {language}: {text}.|How do you say \"{text}\" in {language}?", one("done"), "Here it is."),
    ("schedule_meeting", "Plan a meeting with a person.", dict(person=(S, "Who to meet", nm, ""), day=(S, "Day of the week", dy, ""), time=(S, "Time as HH:MM", clock, "")), "Plan a meeting with {person} on {day} at {time}.|I want to meet {person} on {day} at {time}. Please arrange it.", one("ok"), "Done."),
    ("suggest_dish", "Suggest a dish with an ingredient.", dict(ingredient=(S, "What it is made of", lambda: P(*Q.FOODS), "")), "What can I make with {ingredient}?|I have a lot of {ingredient}. What could I cook?", num(1, 9), "Found {r}."),
    ("order_taxi", "Call a taxi to an address.", dict(address=(S, "Where to come to", lambda: f"{Q.R.randint(1, 200)} {word(2).capitalize()} Street", ""), passengers=(I, "Number of passengers", num(1, 6), "")), "We are {passengers} people at {address} and need a taxi.|Send a taxi for {passengers} to {address}.", num(2, 20), "It comes in {r} minutes."),
    ("get_sunrise", "Time of sunrise.", dict(city=(S, "City", lambda: P(*Q.CITY), ""), date=(S, "Date", date, "")), "When does the sun rise in {city} on {date}?|What time is sunrise in {city} on {date}?", clock, "At {r}."),
    ("set_thermostat", "Set the heating of a room.", dict(room=(S, "Room", room, ""), degrees=(I, "Temperature in degrees", num(12, 26), "")), "Make the {room} {degrees} degrees warm.|Set the heating in the {room} to {degrees} degrees.", one("ok"), "Done."),
    ("count_words", "Count the words of a text.", dict(text=(S, "The text", sentence, "")), "How many words are in this text: {text}?|Count the words: {text}.", num(2, 12), "{r} words."),
    ("add_contact", "Save a person in the address book.", dict(name=(S, "Name", nm, ""), phone=(S, "Phone number", lambda: str(Q.R.randint(100000, 999999)), "")), "Save the number {phone} for {name}.|{name} has the phone number {phone}. Put it in my address book.", one("ok"), "Saved."),
    ("roll_dice", "Roll dice.", dict(dice=(I, "Number of dice", num(1, 9), ""), sides=(I, "Sides of each die", one(4, 6, 8, 10, 12, 20), "")), "Roll {dice} dice with {sides} sides.|Throw {dice} dice. They have {sides} sides each.", num(1, 99), "You rolled {r}."),
    ("play_video", "Play a video on a screen.", dict(title=(S, "Title of the video", phrase, ""), screen=(S, "Which screen", room, "")), "Show the video \"{title}\" on the {screen} screen.|I want to watch {title} in the {screen}.", one("ok"), "Playing."),
    ("cut_grass", "Mow a lawn.", dict(lawn=(S, "Which lawn", one("front lawn", "back lawn", "school lawn", "football field"), ""), height=(I, "Height in cm", num(2, 9), "")), "The grass on the {lawn} is too long. Cut it to {height} cm.|Mow the {lawn}, {height} cm.", one("ok"), "Done."),
]


def style(n):
    """a name in one of the usual styles"""
    w = n.replace("-", "_").split("_")
    return P(n, n, n, n, w[0] + "".join(x.capitalize() for x in w[1:]), "-".join(w), ".".join(w), "".join(x.capitalize() for x in w), f"{word()}_{n}", f"{word()}.{n}")


def instance(spec, plain=False):
    """-> (tool JSON, request maker); names of the tool and of its parameters vary unless plain"""
    names, desc, par, ask, res, ans = spec
    names = names.split("|")
    n = names[0] if plain else P("_".join(word() for _ in range(P(1, 2))), style(P(*names)), style(P(*names)), P(*names))
    pn = {}
    for p, (_, _, _, other) in par.items():
        o = [x for x in other.split("|") if x and x not in pn.values()]
        pn[p] = p if plain or not o else P(p, p, p, *o, word() if chance(0.3) else p)
        if pn[p] in [pn[x] for x in pn if x != p]:
            pn[p] = p
    t = Q.tool(n, desc, **{pn[p]: (ty, d) for p, (ty, d, _, _) in par.items()})

    def make():
        v = {p: g() for p, (_, _, g, _) in par.items()}
        r = res()
        q = P(*ask.split("|")).format(**v)
        out = P({"result": r}, {"result": r}, {"ok": True, "value": r}, {"status": r})
        return q[0].upper() + q[1:], {pn[p]: x for p, x in v.items()}, out, (lambda a: a[0].upper() + a[1:])(P(*ans.split("|")).format(**{**v, "r": r}))

    return t, make
