"""Short true texts about everyday topics, advice, descriptions, verses and letters; put together from hand-written sentences. Own work.
The topics of sample.py's questions are not among them on purpose.
   python facts.py N SEED"""
import sys

import procedural as Q
from procedural import P, an, cap, chance

# topic|verb form ("is" or "are")|what it is|sentences that may follow, in this order
FACTS = """
the sun|is|The sun is a star at the center of our solar system.|It is a huge ball of very hot gas.|It gives us light and warmth.|Without it nothing could live on the Earth.|The Earth goes around it once a year.|Its light needs about eight minutes to reach us.|You should never look straight at it.
the stars|are|Stars are huge balls of hot gas that shine by themselves.|They look small because they are very far away.|The sun is a star, too, and the nearest one.|You can see them best on a clear night, far from city lights.|Some stars are red and cooler, others are blue and hotter.|People have used them to find their way for thousands of years.
rain|is|Rain is water that falls from clouds in drops.|It begins when water from seas and lakes rises into the air as vapor.|High up it is cold, so the vapor turns into tiny drops.|When the drops are too heavy, they fall.|Plants, animals and people need it.|Too much of it can cause floods.
snow|is|Snow is frozen water that falls from clouds as small crystals.|It forms when the air in a cloud is very cold.|Most flakes have six sides.|Fresh snow is full of air, so it keeps the ground warm like a blanket.|When it gets warmer, it melts and becomes water.|Children like to build snowmen with it.
wind|is|Wind is moving air.|The sun warms some places more than others.|Warm air rises, and cooler air flows in to take its place.|That flow is what we feel.|It can turn windmills and make electricity.|Sailors need it to move their ships.
rainbows|are|A rainbow is a band of colors in the sky.|You can see one when the sun shines while it rains.|The sun must be behind you and the rain in front of you.|The drops split the white light into colors.|The colors are red, orange, yellow, green, blue and violet.|You can never walk to its end, because it moves with you.
clouds|are|Clouds are made of many tiny drops of water or bits of ice.|They float because the drops are very small and light.|White clouds often mean good weather.|Dark gray ones often bring rain.|Fog is a cloud that touches the ground.
rivers|are|A river is water that flows over land in a long bed.|Many rivers begin in the mountains as small streams.|They flow downhill, and at last they reach a lake or the sea.|Fish, birds and many plants live in and near them.|People use them for drinking water, for ships and for power.|Old cities were often built beside a river.
mountains|are|Mountains are very high parts of the land.|Most of them formed when plates of the Earth pushed against each other.|That takes millions of years.|It is colder at the top than in the valley.|The highest one is Mount Everest in Asia.|Many people like to climb them or to ski on them.
volcanoes|are|A volcano is an opening in the ground where hot melted rock can come out.|Under the ground the melted rock is called magma.|When it comes out, we call it lava.|An eruption can also throw ash and gas high into the air.|Some volcanoes sleep for hundreds of years.|The soil around them is often very good for plants.
deserts|are|A desert is a place where very little rain falls.|Many deserts are hot by day and cold at night.|Some have sand, but others are full of rocks or ice.|The plants there can live with little water.|The Sahara in Africa is the largest hot desert.|Camels can live there for days without drinking.
forests|are|A forest is a large area with many trees.|Its trees clean the air and give us oxygen.|Many animals find food and shelter there.|The roots hold the soil, so that rain cannot wash it away.|People get wood, berries and mushrooms from it.|A walk among trees makes many people feel calm.
the seasons|are|The seasons are spring, summer, autumn and winter.|They come because the Earth is tilted on its way around the sun.|The part that leans toward the sun has summer.|In spring new leaves grow, and in summer the days are long.|In autumn many leaves fall, and in winter it is cold.
winter|is|Winter is the coldest season of the year.|The days are short and the nights are long.|In many places there is snow and ice.|Some animals sleep through it, and many birds fly to warmer places.|People wear warm clothes and like hot drinks.
spring|is|Spring is the season between winter and summer.|The days get longer and warmer.|Trees get new leaves, and the first flowers open.|Many animals have their young then.|Farmers and gardeners sow their seeds.
lightning|is|Lightning is a very large electric spark in the sky.|It jumps between clouds or from a cloud to the ground.|It heats the air so fast that we hear thunder.|We see it first because light is faster than sound.|In a storm it is safest to stay inside a house.
the Earth|is|The Earth is the planet that we live on.|It is the third planet from the sun.|Most of its surface is covered with water.|It turns around once a day, and that gives us day and night.|It needs a year to go around the sun.|It is the only planet that we know with life.
planets|are|Planets are large round bodies that go around a star.|Eight of them go around our sun.|The nearest to the sun is Mercury, and the largest is Jupiter.|Some are made of rock, and some are mostly gas.|They do not make their own light.|Our home, the Earth, is one of them.
electricity|is|Electricity is a form of energy that can flow through wires.|It makes lamps shine and machines run.|It comes from power stations, wind turbines, solar cells and batteries.|Metals let it pass well, but rubber and dry wood do not.|It can be dangerous, so never touch broken wires.
magnets|are|A magnet is a thing that pulls iron toward itself.|Each magnet has a north pole and a south pole.|Two different poles pull each other, and two equal poles push each other away.|A compass needle is a small magnet.|You find them in motors, speakers and on the door of the fridge.
sound|is|Sound is a fast shaking of the air that our ears can hear.|When something moves quickly back and forth, it makes sound waves.|High notes come from fast waves and low notes from slow ones.|It travels through air, water and walls.|It cannot travel in empty space.
light|is|Light lets us see the things around us.|It moves faster than anything else.|It travels in straight lines, and that is why there are shadows.|White light is a mixture of all colors.|It comes from the sun, from lamps, from fire and from some animals.
dogs|are|Dogs are animals that have lived with people for many thousands of years.|They come from wolves.|They have a very good nose and hear well.|A dog needs food, water, exercise and company.|Many of them help people as guides, guards or rescue dogs.|When they are happy, they often wag their tails.
cats|are|Cats are small hunting animals that live with people as pets.|They can see well when there is little light.|They move quietly and land on their feet most of the time.|A cat sleeps for many hours of the day.|When they feel well, they often purr.|They wash themselves with their tongue.
horses|are|Horses are large, strong animals that eat grass.|They can run fast and sleep standing up.|For a long time people used them to ride and to pull carts.|A young one is called a foal.|They like to live in groups and can be shy.
cows|are|Cows are farm animals that eat grass and give milk.|Their stomach has four parts, so that they can use grass well.|From their milk people make butter, cheese and yogurt.|A young cow is called a calf.|They like to be together in a herd.
bees|are|Bees are flying insects that collect nectar and pollen.|They make honey from the nectar.|A hive has one queen and thousands of workers.|While they visit flowers, they carry pollen from one to the next.|Many fruits could not grow without them.|A bee only stings when it feels in danger.
butterflies|are|Butterflies are insects with four wings, often in bright colors.|They begin life as an egg, and then a caterpillar comes out.|The caterpillar eats leaves and grows.|Then it rests in a shell and changes its whole body.|At the end a butterfly comes out and dries its wings.|They drink nectar with a long thin tongue.
ants|are|Ants are small insects that live in large groups.|Each nest has a queen that lays the eggs.|The workers look for food, build the nest and care for the young.|An ant can carry things that are much heavier than itself.|They find their way with smells that they leave on the ground.
spiders|are|Spiders are small animals with eight legs.|They are not insects.|Most of them make silk, and many build webs to catch flies.|They help us because they eat many insects.|Nearly all of them are harmless to people.
owls|are|Owls are birds that mostly hunt at night.|They have large eyes and very good ears.|Their soft feathers let them fly without a sound.|They can turn their head very far around.|They eat mice and other small animals.
penguins|are|Penguins are birds that cannot fly but swim very well.|Most of them live in the cold south of the world.|Their feathers and fat keep them warm.|They eat fish and small sea animals.|They often stand close together in the cold.
whales|are|Whales are very large animals that live in the sea.|They are not fish but mammals, and they breathe air.|The blue whale is the largest animal that has ever lived.|They talk to each other with sounds that travel far.|Some eat tiny animals that they filter out of the water.
sharks|are|Sharks are fish that have lived in the sea for a very long time.|Their skeleton is made of cartilage and not of bone.|They lose teeth often, and new ones grow.|They can smell very well.|Most kinds are no danger to people.
frogs|are|Frogs are small animals that live near water.|They begin life as tadpoles, which have a tail and live in the water.|Later they grow legs and can live on land.|They catch insects with a long sticky tongue.|In spring you can hear them call.
turtles|are|Turtles are animals with a hard shell.|The shell protects them from enemies.|Some live in the sea, and others live on land.|They lay eggs in sand or soil.|Many of them can become very old.
snakes|are|Snakes are long animals without legs.|They smell with their tongue.|They swallow their food whole.|From time to time they get a new skin.|Some are poisonous, but most are harmless.
lions|are|Lions are big cats that live mostly in Africa.|They live in groups that are called prides.|The females do most of the hunting.|The male has a large mane around his head.|They sleep for many hours a day.
bears|are|Bears are large, strong animals with thick fur.|They eat berries, roots, fish and honey.|Many bears sleep through the winter in a den.|The polar bear lives on the ice in the north.|A mother bear takes good care of her cubs.
dinosaurs|are|Dinosaurs were animals that lived a very long time ago.|Some were huge, and others were as small as a hen.|Some ate plants, and others ate meat.|They died out about 66 million years ago.|We know about them from bones in the rock.|Birds are their relatives.
trees|are|Trees are tall plants with a trunk made of wood.|Their leaves make food from light, air and water.|They give off oxygen, which we breathe.|Their roots hold them in the ground and take up water.|Birds and insects live in them.|Some trees become many hundred years old.
flowers|are|Flowers are the parts of a plant that make seeds.|Their colors and smells attract insects.|The insects carry pollen from one flower to another.|Then fruits and seeds can grow.|People like to give them as a present.
mushrooms|are|Mushrooms are neither plants nor animals.|They grow in forests and meadows, often after rain.|The part that we see is only the fruit of a network under the ground.|Some taste very good, and some are poisonous.|Never eat one that you do not know.
apples|are|Apples are round fruits that grow on trees.|They can be red, green or yellow.|They taste sweet or a little sour.|You can eat them fresh or make juice, sauce and cake from them.|In the middle are small brown seeds.
potatoes|are|Potatoes are plants whose thick parts under the ground we eat.|They came to Europe from South America.|You can boil, bake or fry them.|They fill you up and keep for a long time in a cool, dark place.|You should not eat them raw.
rice|is|Rice is the seed of a grass that grows in wet fields.|It is the most important food for many people in Asia.|You cook it in water until it is soft.|There is white rice and brown rice.|It goes well with vegetables, fish or meat.
cheese|is|Cheese is a food that is made from milk.|The milk is made thick, and the water is taken out.|Some cheese is soft, and some becomes hard when it gets old.|It can come from cows, goats or sheep.|It goes well with bread.
honey|is|Honey is a sweet food that bees make from nectar.|The bees carry the nectar to the hive and dry it there.|It keeps for a very long time.|People put it on bread or in tea.|Its color and taste depend on the flowers.
chocolate|is|Chocolate is made from the beans of the cacao tree.|The beans are dried, roasted and ground.|Then sugar and often milk are added.|Dark chocolate has more cacao than milk chocolate.|Dogs must not eat it.
tea|is|Tea is a drink made from leaves and hot water.|Green and black tea come from the same plant.|It came to us from China.|You let the leaves stay in the hot water for a few minutes.|Some people add milk, sugar or lemon.
coffee|is|Coffee is a drink made from roasted beans.|The beans grow on a bush in warm countries.|It makes people feel more awake.|You can drink it black or with milk and sugar.|Too much of it makes it hard to fall asleep.
salt|is|Salt is a white mineral that gives taste to food.|It comes from the sea or from old layers in the ground.|Our body needs a little of it.|Long ago it was used to keep meat and fish fresh.|Too much of it is not healthy.
soup|is|Soup is a warm meal that you eat with a spoon.|You cook vegetables, meat or fish in water.|Salt and herbs give it more taste.|It is cheap, easy to make and good on cold days.|Bread goes well with it.
water|is|Water is a clear liquid that all living things need.|It can be liquid, or ice, or vapor.|It freezes at zero degrees and boils at one hundred degrees Celsius.|Most of it on the Earth is salty.|We should not waste it, because clean water is precious.
the heart|is|The heart is a muscle that pumps blood through the body.|It is about as big as your fist.|It beats all day and all night.|When you run, it beats faster, because the muscles need more oxygen.|Sport and good food keep it healthy.
the brain|is|The brain is the part of the body that thinks.|It lies inside the head, and the skull protects it.|It gets messages from the eyes, the ears and the skin.|It tells the muscles what to do.|It needs sleep, food and oxygen.
bones|are|Bones hold up the body and protect its soft parts.|An adult has about two hundred of them.|They are hard outside, and inside many of them have soft marrow.|When one breaks, it can grow together again.|Milk, cheese and green vegetables are good for them.
teeth|are|Teeth help us to bite and chew our food.|Children first have milk teeth, which fall out later.|Sugar can make holes in them.|You should brush them twice a day.|A dentist looks after them.
exercise|is|Exercise means moving your body.|It makes the heart and the muscles stronger.|It also helps against stress and lifts the mood.|You can walk, run, swim, dance or ride a bicycle.|Start slowly and do a little every day.
friendship|is|Friendship is a bond between people who like and trust each other.|Friends share good and bad times.|They listen, help and laugh together.|It needs time and honesty.|Sometimes friends argue, but they can say sorry.
kindness|is|Kindness means being good to others.|It can be a smile, a helping hand or a friendly word.|It costs nothing, and it makes both sides happy.|Small acts can change somebody's whole day.|It is good to be kind to animals, too.
courage|is|Courage means doing the right thing even if you are afraid.|Brave people feel fear, too.|It takes courage to tell the truth or to ask for help.|It grows a little each time you use it.
patience|is|Patience means staying calm while you wait.|It helps when something takes long or goes wrong.|You need it to learn something new.|Taking a slow breath can help you to be patient.
music|is|Music is made of sounds, rhythm and melody.|People in all parts of the world make it.|It can be happy, sad, loud or quiet.|You can sing it or play it on instruments.|It helps many people to relax or to dance.
books|are|Books are pages with words or pictures that are bound together.|They tell stories or teach us something.|You can buy them in a shop or borrow them in a library.|Reading a little every day makes you better at it.|Many books can also be read on a screen.
libraries|are|A library is a place where you can borrow books.|Many also have films, music and computers.|You take a book home and bring it back after some weeks.|It is quiet there, so that people can read and study.|The people who work there help you to find what you need.
schools|are|A school is a place where children learn.|They learn to read, to write and to count.|They also learn about nature, history and other countries.|Teachers explain things and give homework.|Many people find their first friends there.
money|is|Money is what people use to pay for things.|Before it existed, they traded one thing for another.|It can be coins, notes or a number in a bank account.|You can spend it, save it or give it away.|It is wise not to spend more than you have.
clocks|are|Clocks show us what time it is.|Most have a short hand for the hours and a long hand for the minutes.|Long ago people used the sun, water or sand to measure time.|A day has 24 hours, and an hour has 60 minutes.|They help people to meet at the right time.
trains|are|Trains are vehicles that run on rails.|A locomotive pulls or pushes the cars.|The first ones were driven by steam.|Today most of them use electricity or diesel.|They can carry many people or heavy loads at once.
bicycles|are|A bicycle has two wheels and is moved with the legs.|You push the pedals, and a chain turns the back wheel.|It needs no fuel, and riding it is healthy.|You should wear a helmet and use a light in the dark.|The brakes should be checked from time to time.
airplanes|are|Airplanes are machines that can fly.|Their wings are shaped so that the moving air lifts them.|Engines give them speed.|The Wright brothers made the first motor flight in 1903.|Today people can fly around the world in about two days.
ships|are|Ships are large boats that carry people or goods over the water.|They float because they push away as much water as they weigh.|Long ago they were moved by oars and sails.|Today they have engines.|A captain leads the crew.
bridges|are|A bridge lets people and cars cross a river, a valley or a road.|It can be made of wood, stone, steel or concrete.|Some hang on strong cables, and others stand on pillars.|Engineers plan them so that they can carry heavy loads.
computers|are|Computers are machines that work with numbers, words, pictures and sound.|They follow the steps of a program.|Inside they use only two signs, zero and one.|The first ones were as big as a room.|Today they are in phones, cars and washing machines.
the internet|is|The internet is a network that connects computers all over the world.|You can use it to send messages, to read news and to watch films.|Not everything that you find there is true.|Never give your password to strangers.
robots|are|Robots are machines that can do tasks by themselves.|They have sensors to notice things and motors to move.|In factories they weld, lift and paint.|Some clean floors, and others explore Mars.|They only do what they are built and programmed to do.
recycling|is|Recycling means making new things from old ones.|Paper, glass, metal and some plastic can be used again.|It saves energy and raw materials.|You sort the waste, so that each kind goes to the right place.|It is even better to make less waste.
solar power|is|Solar power is energy from the light of the sun.|Solar cells turn the light into electricity.|It makes no smoke and no noise.|It works best on sunny days.|Batteries can store it for the night.
fire|is|Fire gives heat and light.|It needs fuel, air and enough heat.|If you take away one of them, it goes out.|People use it to cook and to keep warm.|It can be dangerous, so never leave it alone.
gold|is|Gold is a yellow metal that shines and does not rust.|It is soft and easy to shape.|People have made rings and coins from it for thousands of years.|It is rare, and that is why it is expensive.|It also lets electricity pass well.
glass|is|Glass is made from sand that is melted in a very hot oven.|While it is hot, it can be blown or pressed into shape.|It lets light through, and that is why we use it for windows.|It breaks easily but can be melted again.
paper|is|Paper is made from wood or from old paper.|The fibers are mixed with water, pressed flat and dried.|It was invented in China about two thousand years ago.|We use it for books, letters, bags and boxes.
football|is|Football is a game for two teams of eleven players.|They try to get the ball into the other team's goal.|Only the goalkeeper may use the hands.|A match lasts 90 minutes.|Millions of people around the world play it or watch it.
chess|is|Chess is a board game for two players.|The board has 64 squares, and each player has 16 pieces.|The goal is to trap the other king.|Each kind of piece moves in its own way.|It trains thinking and patience.
swimming|is|Swimming means moving through water with arms and legs.|It is good for the whole body.|You can do it in a pool, in a lake or in the sea.|Everyone should learn it, because it can save a life.|Never swim alone in deep water.
gardens|are|A garden is a place where people grow plants.|There can be flowers, vegetables, herbs or trees.|Plants need light, water and good soil.|Working there is healthy and makes many people happy.|Bees and birds like it, too.
farms|are|A farm is a place where food is grown and animals are kept.|There are fields, barns and machines.|Farmers get up early, because the animals must be fed.|They grow wheat, corn, vegetables or fruit.|Most of the food that we eat comes from there.
cities|are|A city is a place where very many people live.|There are shops, schools, offices and theaters.|Buses and trains bring people from one part to another.|It is often loud, but there is much to see and to do.|Parks give people a place to rest.
photosynthesis|is|Photosynthesis is the way in which plants make their food.|They use sunlight, water and carbon dioxide from the air.|From these they make sugar and oxygen.|The green color in the leaves catches the light.|Nearly all life on the Earth depends on it.
the water cycle|is|The water cycle is the way that water takes around the Earth.|The sun warms seas and lakes, and water rises as vapor.|High up the vapor becomes clouds.|The water comes down as rain or snow.|Rivers carry it back to the sea, and it starts again.
bacteria|are|Bacteria are tiny living things that we can only see with a microscope.|They live nearly everywhere, also on and in our body.|Many are useful: they help us to digest food and to make cheese.|Some can make us ill.|Washing your hands keeps bad ones away.
shadows|are|A shadow is a dark place that a thing makes when it stands in the light.|Light travels in straight lines and cannot go around the thing.|In the morning and in the evening shadows are long.|At noon they are short, because the sun is high.
time zones|are|Time zones are parts of the world that have the same time.|The Earth turns, so the sun rises at different moments in different places.|When it is noon in London, it is still early morning in New York.|Travelers have to set their watches.
""".strip().split("\n")

ADV = """
learn a new language|Learn a few words every day and use them in sentences.|Listen to songs, films or radio in that language.|Speak as early as you can, and do not be afraid of mistakes.|Find someone who speaks it and talk with them.|Ten minutes every day are better than two hours once a week.
save money|Write down what you spend for one month.|Then look for things that you do not really need.|Put a fixed amount aside as soon as you get your money.|Cook at home and take your lunch with you.|Wait a day before you buy something expensive.
make new friends|Go to places where people share your interests, such as a club or a course.|Smile, say hello and ask a question.|Listen well and remember what people tell you.|Invite someone for a walk or a cup of tea.|Be patient, because trust needs time.
study for an exam|Make a plan and start some days before.|Divide the material into small parts.|Explain each part to yourself in your own words.|Do old tests and check your mistakes.|Take short breaks and sleep well in the night before.
prepare for a job interview|Read about the company and the job.|Think of examples that show what you can do.|Practice answers to common questions aloud.|Choose clean clothes and leave home early.|Have one or two questions ready for the end.
grow tomatoes|Sow the seeds in small pots inside the house.|Put the plants outside when the nights are no longer cold.|Choose a sunny place with good soil.|Water them at the root and not on the leaves.|Tie the stems to a stick, so that they do not break.
take care of a cat|Give it fresh water and good food every day.|Keep its box clean.|Play with it, so that it does not get bored.|Let it rest when it wants to be alone.|Take it to a vet once a year.
train a puppy|Use short and clear words such as sit and stay.|Practice for a few minutes several times a day.|Praise it at once when it does the right thing.|Never shout at it or hit it.|Be patient, because a puppy learns step by step.
cook rice|Wash the rice until the water is nearly clear.|Use about two cups of water for one cup of rice.|Bring it to a boil with a little salt.|Then cover the pot and let it cook on low heat for about fifteen minutes.|Leave it for five minutes before you open the lid.
make tea|Boil fresh water.|Put the leaves or a bag into the pot.|Pour the hot water over it.|Wait for three to five minutes, and take the leaves out.|Add milk, sugar or lemon if you like.
make pancakes|Mix flour, milk, eggs and a little salt.|Let the dough rest for ten minutes.|Heat some butter in a pan.|Pour in a thin layer and turn it when the lower side is golden.|Eat them warm with sugar, jam or fruit.
make a good soup|Cut onions, carrots and other vegetables into small pieces.|Fry them in a little oil.|Add water, salt and herbs.|Let it cook on low heat until everything is soft.|Taste it before you serve it.
start running|Begin with a few minutes of slow running and walk in between.|Run two or three times a week.|Wear good shoes.|Go so slowly that you can still talk.|Run a little longer each week.
eat healthier|Eat vegetables or fruit with every meal.|Drink water in place of sweet drinks.|Choose whole grain bread and rice.|Eat slowly and stop when you are full.|Keep sweets for special moments.
stay calm|Stop for a moment and take a few slow breaths.|Count to ten before you answer.|Ask yourself if it will still matter next week.|Take a short walk if you can.|Then look at the problem again, one step at a time.
deal with stress|Write down everything that you have to do.|Choose the most important thing and start with it.|Take breaks and go outside.|Talk with someone you trust.|Sleep enough, and say no when it is too much.
speak in public|Know your first sentence by heart.|Practice aloud, best in front of a friend.|Speak slowly and look at the people.|Use short notes and not a full text.|It is normal to be nervous, and it gets better each time.
apologize to a friend|Choose a quiet moment.|Say clearly what you did wrong.|Say that you are sorry, and do not look for excuses.|Ask how you can make it right.|Give your friend time.
help a sad friend|Ask how they feel and listen.|Do not try to solve everything at once.|Offer something simple, such as a walk or a cup of tea.|Tell them that they are not alone.|Ask again after a few days.
plan a birthday party|Choose a day, a place and how many people should come.|Send the invitations two weeks before.|Make a list of food, drinks and games.|Ask friends to help you.|Get everything ready the day before, so that you can enjoy it.
pack for a trip|Look at the weather before you pack.|Make a list and tick off each thing.|Put heavy things at the bottom.|Keep tickets, money and medicine in a small bag.|Take less than you think you need.
clean my room|Open the window and put on some music.|Throw away what is broken or old.|Put clothes into the closet or the wash.|Clean from top to bottom, the floor last.|A few minutes each day keep it tidy.
manage my time|Write down your tasks in the evening.|Do the most important one first.|Work for half an hour, and then take a short break.|Turn off your phone while you work.|Plan some free time, too.
build good habits|Start with something very small.|Do it at the same time every day.|Connect it with something that you already do.|Mark each day on a calendar.|If you miss a day, just go on the next day.
remember names|Listen carefully when you hear the name.|Say it aloud at once.|Connect it with a picture or a person you know.|Use it again when you say goodbye.|Write it down later.
choose a strong password|Use at least twelve characters.|Three or four random words are easy to remember.|Use another password for each account.|Do not use your name or your birthday.|A password manager can keep them for you.
treat a small cut|Wash your hands first.|Rinse the cut with clean water.|Press a clean cloth on it until it stops bleeding.|Put a plaster on it.|See a doctor if it is deep or becomes red and hot.
fix a flat tire|Take the wheel off the bicycle.|Lift the tire with tire levers and pull the tube out.|Pump it up and find the hole.|Clean the place, and put glue and a patch on it.|Put everything back and pump it up again.
plant a tree|Choose a place with enough room and light.|Dig a hole twice as wide as the roots.|Put the tree in, straight and not too deep.|Fill the hole with soil and press it a little.|Give it plenty of water in the first year.
write a short story|Think of one person who wants something.|Put something in the way.|Begin in the middle of the action.|Show what the person does and says.|At the end something should be different from the start.
be a better listener|Put your phone away and look at the person.|Do not interrupt.|Ask a question when something is not clear.|Say in your own words what you have understood.|Do not give advice too early.
stay warm in winter|Wear several thin layers in place of one thick one.|Keep your head, hands and feet warm.|Drink something hot.|Move around from time to time.|Close doors and windows well.
save energy at home|Turn off lamps that you do not need.|Wash clothes with cool water.|Put a lid on the pot when you cook.|Do not heat rooms that nobody uses.|Pull the plug of chargers and old machines.
keep a diary|Choose a fixed time, for example before bed.|Write only a few lines at first.|Note what you did, what you felt and what you learned.|Nobody else has to read it.|After a year you will enjoy looking back.
learn to swim|Begin in shallow water with a teacher or a good swimmer.|Get used to having your face in the water.|Learn to float first.|Then practice the legs and after that the arms.|Go regularly, and never swim alone.
take better photos|Look for good light, for example in the morning.|Go closer to what you want to show.|Keep the background simple.|Hold the camera still.|Take several pictures and keep the best one.
""".strip().split("\n")

DIFF = """
a frog|a toad|A frog has smooth, wet skin and long legs, and it jumps far.|A toad has dry skin with bumps, and it mostly walks.|Both begin life in the water.
a lake|a river|A lake is still water with land all around it.|A river flows and carries its water to a lake or to the sea.
a fruit|a vegetable|A fruit grows from the flower of a plant and has seeds.|A vegetable is another part of the plant, such as the root, the stem or the leaf.|In the kitchen we often call sour or salty fruits vegetables, for example tomatoes.
weather|climate|Weather is what happens outside today or this week.|Climate is the usual weather of a place over many years.
a butterfly|a moth|Butterflies mostly fly by day and rest with closed wings.|Moths mostly fly at night and are often less colorful.|Both were caterpillars first.
a planet|a star|A star shines by itself, because it is very hot.|A planet goes around a star and only reflects its light.
a bus|a train|A bus drives on roads and is smaller.|A train runs on rails and can carry many more people.
a violin|a guitar|A violin is held at the chin and played with a bow.|A guitar is held on the lap, and its strings are plucked with the fingers.
a crocodile|an alligator|An alligator has a wide, round snout.|A crocodile has a narrower one, and you can see its lower teeth when its mouth is closed.
coffee|tea|Coffee is made from roasted beans and tea from leaves.|Coffee usually makes you more awake.|Both are drunk hot.
a hill|a mountain|Both are higher than the land around them.|A mountain is much higher and often steeper than a hill.
a poem|a story|A poem uses few words, with rhythm and often rhyme.|A story tells what happens to somebody from the beginning to the end.
an insect|a spider|An insect has six legs and often wings.|A spider has eight legs and no wings.
summer|winter|In summer the days are long and warm.|In winter the days are short and cold.
a wolf|a dog|Wolves live wild and hunt in packs.|Dogs come from wolves but have lived with people for thousands of years.
""".strip().split("\n")

PLACES = {
    "a market": (["Stands with bright fruit stand close together.", "Red apples, green beans and yellow lemons lie in wooden boxes.", "A woman weighs potatoes on an old scale.", "Fish lie on white ice.", "Flowers stand in buckets of water."], ["Sellers call out their prices.", "Somewhere a child laughs.", "People talk and bargain."], ["It smells of fresh bread and herbs.", "The smell of roasted nuts is in the air.", "It smells of oranges and cheese."]),
    "a small village": (["A narrow street leads past old stone houses.", "Cats sleep on the warm steps.", "In the middle there is a well under a big tree.", "Flowers hang from every window.", "An old man sits on a bench and greets everyone."], ["The church bell rings every hour.", "A rooster crows behind a wall.", "You can hear the stream behind the houses."], ["It smells of wood smoke.", "From the bakery comes the smell of bread.", "It smells of hay."]),
    "a forest": (["Tall trees stand close together, and the light is green.", "Moss covers the stones like a soft carpet.", "A narrow path leads between the ferns.", "Mushrooms grow beside a fallen tree.", "A deer looks up and runs away."], ["A woodpecker knocks far away.", "Leaves rustle in the wind.", "It is so quiet that you hear your own steps."], ["It smells of wet earth.", "The air is fresh and smells of pine.", "It smells of leaves and wood."]),
    "a train station": (["A big clock hangs over the platforms.", "People hurry past with their bags.", "A family looks at the board with the times.", "A man waves to someone behind a window.", "Pigeons walk between the benches."], ["A voice announces the next train.", "Wheels squeal on the rails.", "A whistle blows, and the doors close."], ["It smells of coffee and iron.", "The smell of warm rolls comes from a small shop.", "It smells of rain and dust."]),
    "a library": (["Long shelves full of books reach up to the ceiling.", "Green lamps stand on the tables.", "A student writes something in a notebook.", "Children sit on cushions and look at pictures.", "A cart with old books stands by the door."], ["It is very quiet.", "Only pages turn from time to time.", "Someone whispers a question."], ["It smells of old paper.", "The air smells of wood and dust.", "There is a faint smell of ink."]),
    "a farm": (["The barn is red, and its door is open.", "Hens walk around in the yard.", "A tractor stands beside the fence.", "Cows look over the gate.", "Behind the house there is a field of corn."], ["A dog barks when somebody comes.", "The geese are louder than everyone else.", "You can hear the wind in the corn."], ["It smells of hay and animals.", "It smells of fresh milk.", "The air smells of cut grass."]),
    "a harbor": (["Fishing boats rock on the water.", "Nets hang over the wall to dry.", "A sailor paints the side of his ship.", "Gulls sit on every post.", "At the end of the pier stands a white lighthouse."], ["Ropes creak in the wind.", "The gulls scream.", "A ship's horn sounds deep and long."], ["It smells of salt and fish.", "The air smells of tar and rope.", "It smells of seaweed."]),
    "a kitchen": (["Pots hang over the stove.", "A bowl of eggs stands on the table.", "Herbs grow on the window sill.", "The floor has black and white tiles.", "A cat waits under the chair."], ["The soup bubbles quietly.", "A spoon rings against a cup.", "The old fridge hums."], ["It smells of onions and butter.", "The smell of cinnamon fills the room.", "It smells of fresh coffee."]),
    "a park": (["Children play on the grass.", "A row of old trees gives shade.", "Ducks swim on a small pond.", "Two old men play chess at a stone table.", "Somebody reads a book on a bench."], ["A fountain splashes.", "A bicycle bell rings.", "Birds sing in the bushes."], ["It smells of cut grass.", "The roses smell sweet.", "The air is fresh after the rain."]),
    "a castle": (["Thick gray walls stand on a hill.", "A wooden bridge leads over the ditch.", "In the hall hang old swords and flags.", "Narrow stairs lead up to the tower.", "From the top you can see the whole valley."], ["Your steps echo on the stone.", "The wind whistles through the windows.", "A heavy door falls shut."], ["It smells of cold stone.", "The air is cool and damp.", "It smells of candles."]),
}
MOODS = ["It is a place where you would like to stay.", "Nobody is in a hurry here.", "There is always something to see.", "You feel small and happy at the same time.", "It is never boring.", "When you leave, you want to come back."]
TIMES = ["In the morning", "On a sunny day", "Late in the afternoon", "In the evening", "On a Sunday", "Early in the day"]

VERSE = {
    "spring": ["The snow has gone, the days are long,\nthe blackbird sings its morning song.", "A little green is on the tree,\nand all the world is glad and free.", "The garden wakes, the rain is warm,\nthe bees fly out, a happy swarm."],
    "winter": ["The snow comes down without a sound\nand lays its white upon the ground.", "The pond is still, the air is clear,\nthe longest night is nearly here.", "I watch the fire, red and bright,\nand stay at home this winter night."],
    "rain": ["The rain is knocking on the pane,\nand then it stops, and starts again.", "The puddles shine along the street,\na child runs by with dripping feet.", "The clouds are gray, the grass is green,\nthe brightest green I've ever seen."],
    "the night": ["The lamps are lit, the street is still,\na slow wind walks across the hill.", "The owl is calling from the tree,\nthe stars look down on you and me.", "The day is done, the work is through,\nthe dark is soft, the dream is new."],
    "the wind": ["The wind came early to my door\nand swept the leaves across the floor.", "It pulls the kite, it turns the mill,\nit sings its song upon the hill.", "Where does it come from? No one knows.\nIt takes your hat, and off it goes."],
    "a cat": ["My cat lies sleeping in the sun\nand does not move for anyone.", "She walks on paws as soft as snow,\nand where she goes, I do not know.", "She looks at me with eyes of gold,\nas if the secret could be told."],
    "home": ["A table, bread, a cup of tea,\na chair for you, a chair for me.", "The door is low, the room is small,\nbut there is room enough for all.", "However far my feet may roam,\nthe best road is the road back home."],
    "a river": ["The river runs from hill to plain\nand carries home the fallen rain.", "It tells a story to each stone,\na story that is all its own.", "A leaf goes sailing, round and slow,\nand where it ends, no one can know."],
}


def pick(xs, lo, hi):
    """some of them in their order"""
    n = min(len(xs), Q.R.randint(lo, hi))
    return [xs[i] for i in sorted(Q.R.sample(range(len(xs)), n))]


def fact():
    t, be, first, *rest = P(*FACTS).split("|")
    q = P(f"What {be} {t}?", f"What {be} {t}?", f"Tell me about {t}.", f"Tell me something about {t}.", f"Explain {t}.", f"Explain {t} in simple words.", f"Can you tell me what you know about {t}?", f"What should I know about {t}?", f"Describe {t}.", f"Write a short paragraph about {t}.", f"I want to learn about {t}.", f"What do you know about {t}?", f"{cap(t)}?")
    x = Q.R.random()
    if x < 0.15:
        k = pick([first] + rest, 3, 3)
        return [("user", P(f"Give me three facts about {t}.", f"Tell me three things about {t}.", f"Three short facts about {t}, please.")), ("assistant", "\n".join(f"{i + 1}. {s}" for i, s in enumerate(k)))]
    if x < 0.25:
        return [("user", q + P(" Answer in one sentence.", " One sentence, please.", " Be very brief.")), ("assistant", first)]
    k = pick(rest, 2, 5)
    turns = [("user", q), ("assistant", " ".join([first] + k))]
    more = [s for s in rest if s not in k]
    if more and chance(0.3):
        turns += [("user", P("Tell me more.", "What else?", "Anything else?", "One more thing, please.")), ("assistant", " ".join(more[:2]))]
    return turns


def advice():
    a, *s = P(*ADV).split("|")
    q = P(f"How can I {a}?", f"How do I {a}?", f"I want to {a}. What should I do?", f"Give me some tips to {a}.", f"What is the best way to {a}?", f"Can you help me {a}?", f"I would like to {a}. Any advice?")
    k = s[:1] + pick(s[1:], 2, 4)
    if chance(0.35):
        return [("user", q + P("", " Make a list.")), ("assistant", "\n".join(f"{i + 1}. {x}" for i, x in enumerate(k)))]
    if chance(0.15):
        k = k[: P(1, 2)]
        return [("user", q + P(" Keep it short.", " Be brief.", " One tip is enough.")), ("assistant", " ".join(k))]
    end = P("", "", "", " Good luck!", " You can do it.", " Start today with the first step.")
    return [("user", q), ("assistant", " ".join(k) + end)]


def differ():
    a, b, *s = P(*DIFF).split("|")
    if chance(0.3):
        return [("user", P(f"What is the difference between {b} and {a}?", f"How are {a} and {b} different?")), ("assistant", " ".join(s))]
    return [("user", P(f"What is the difference between {a} and {b}?", f"Compare {a} and {b}.", f"Explain the difference between {a} and {b}.")), ("assistant", " ".join(s))]


def describe():
    p = P(*PLACES)
    see, hear, smell = PLACES[p]
    k = pick(see, 2, 4)
    t = P(*TIMES)
    k[0] = P(k[0], f"{t} {k[0][0].lower() + k[0][1:]}" if not k[0].startswith(("A ", "Red", "Cats", "Hens", "Cows")) or chance(0.5) else k[0])
    out = k + [P(*hear), P(*smell)]
    if chance(0.6):
        out.append(P(*MOODS))
    return [("user", P(f"Describe {p}.", f"Write a short description of {p}.", f"What does {p} look like?", f"Describe a visit to {p}.", f"Write a few sentences about {p}.")), ("assistant", " ".join(out))]


def poem():
    t = P(*VERSE)
    k = Q.R.sample(VERSE[t], P(1, 2, 2, 3))
    return [("user", P(f"Write a short poem about {t}.", f"Write a poem about {t}.", f"A poem about {t}, please.", f"Can you write some verses about {t}?")), ("assistant", "\n\n".join(k))]


def letter():
    n, me = Q.name(), Q.name()
    k = Q.R.randrange(5)
    day, time, food, obj, city = P(*Q.DAYS), P(*Q.TIMES), P(*Q.FOODS), P(*Q.OBJ), P(*Q.CITY)
    if k == 0:
        q, b = f"to {n} to say thank you for the {obj}", P(f"Thank you very much for the {obj}. I use it every day, and I think of you each time.", f"Your {obj} arrived on {day}. It is just what I needed. Thank you!", f"What a surprise! The {obj} is beautiful, and I am very happy with it.")
    elif k == 1:
        q, b = f"to invite {n} to dinner on {day}", P(f"Would you like to come to dinner on {day} at {time}? There will be {food}, and I would be happy to see you.", f"I am cooking {food} on {day} and would like to share it with you. Can you come at {time}?")
    elif k == 2:
        q, b = f"to {n} from {city}", P(f"Greetings from {city}! The weather is {P('fine', 'rainy', 'warm', 'cold but clear')}, and there is so much to see. Yesterday I walked through the old streets and ate {food}.", f"I have been in {city} for {Q.R.randint(2, 9)} days now. I like the people and the {food}. On {day} I will come home again.")
    elif k == 3:
        q, b = f"to {n} to say that I am late", P(f"I am sorry, but I will be late. My {P('train', 'bus', 'car')} has a problem. I hope to be there at {time}.", f"Please start without me. I cannot come before {time}. I am sorry for the trouble.")
    else:
        q, b = f"to {n} to say sorry", P(f"I am sorry that I forgot our meeting on {day}. It was my mistake. Can we find a new time?", f"I should not have taken your {obj} without asking. I am sorry. I will bring it back on {day}.")
    sign = P("Best wishes", "Yours", "Kind regards", "See you soon", "With love")
    named = chance(0.5)
    return [("user", P(f"Write a short letter {q}.", f"Write a short email {q}.", f"Write a message {q}.") + (f" My name is {me}." if named else "")), ("assistant", f"Dear {n},\n\n{b}\n\n{sign}" + (f",\n{me}" if named else ""))]


def k_fact():
    f = Q.R.choices([fact, advice, differ, describe, poem, letter], [44, 22, 6, 12, 6, 10])[0]
    return Q.chat(f(), P(*Q.SYS))


if __name__ == "__main__":
    Q.R.seed(int(sys.argv[2]))
    for _ in range(int(sys.argv[1])):
        print("".join(t for t, _ in k_fact()), "\n")
