"""The words that projects are told apart by: 1024 common ones, so that each stands for ten bits."""

from __future__ import annotations

from typing import Final

_TEXT: Final = """
    acorn actor agate album alder algae almond aloe alpaca alto amber anchor angle animal ankle
    antler anvil apple apricot apron arbor arch arena armor aroma arrow artist ash aspen aster
    atlas attic autumn avenue avocado axle azure badge badger bagel baker balcony ballad ballet
    balloon bamboo banana band banjo bank banner barley barn barrel basil basin basket bat bay
    beach bead beagle beam bean bear beaver bee beetle bell belt bench berry birch bird biscuit
    bison blanket blossom blue board boat bobcat bog bolt bone bonfire bonnet book boot border
    bottle boulder bow bowl box branch brass bread breeze brick bridge brook broom broth brush
    bubble bucket buckle bud buffalo bugle bulb bun bunny buoy burrow bus bush butter button cabin
    cable cactus cake calf camel camera camp canal canary candle canoe canopy canvas canyon cape
    captain caravan card cargo carol carp carpet carrot cart cashew castle cat cave cedar celery
    cello chair chalk channel chapel chart cheese cherry chess chest chestnut chick chili chime
    chimney chin chip cider cinder circle citrus city clam clarinet clay cliff clock cloth cloud
    clove clover coach coal coast coat cobalt cocoa coconut cod coffee coil coin collar collie
    comb comet compass cone copper coral cord cork corn corner cosmos cotton couch cougar cove cow
    crab cradle crane crater crayon cream creek crest cricket crocus crow crown crumb crystal cube
    cuckoo cup curl curtain cushion cymbal cypress daffodil dahlia daisy dam dance date dawn day
    deck deer delta denim desert desk dew diamond dice dill dinghy dish dock dog dolphin dome
    donkey door dough dove dragon drawer dream dress drift drum duck dune dusk dust eagle ear
    earth easel east echo eclipse eel egg elbow elder elephant elk elm ember emerald emu engine
    envelope estuary evening fable fabric falcon family fan farm fawn feather fence fennel fern
    ferry festival fiddle field fig finch finger fir fire fish fjord flag flame flannel flask flax
    fleece flint flock flood floor flower flute foal foam fog folder forest fork fort fossil
    fountain fox frame freckle frog frost fruit fudge furrow galaxy gale gallery game garage
    garden garland garlic garnet gate gazelle gecko gem geyser giant ginger giraffe glacier glade
    glass globe glove glue gnome goat gold goose gorge gourd grain granite grape graph grass
    gravel green grove guava guitar gull hail halo ham hamlet hammer hammock hamster hand handle
    harbor hare harp harvest hat hatch haven hawk hay hazel heart hearth heath heather hedge helm
    helmet hen herald herb herd heron herring hickory hill hinge hive hobby holly honey hood hoof
    hook hoop horizon horn hornet horse house hut ice icicle igloo iguana indigo ink inlet iris
    iron island ivory ivy jackal jacket jade jaguar jam jar jasmine jay jelly jersey jewel jigsaw
    journey jug juice jungle juniper kale kayak kelp kennel kernel kettle key kiln king kipper
    kitchen kite kitten kiwi knee knot koala label lace ladder lagoon lake lamb lamp lane lantern
    larch lark laser laurel lava lavender lawn leaf leather ledge leek lemon lemur lens lentil
    leopard letter lettuce library lichen light lilac lily lime linden linen lion lizard llama
    loaf lobby lobster lock locket lodge log loom lotus lounge lunch lupin lute lynx lyric macaw
    magnet magnolia magpie mallard mallet mammoth mango manor mantis map maple marble march mare
    margin marina market marsh mask mast match meadow medal medley melody melon memory merlin
    meteor mill mime minnow mint mirror mist mitten moat model mole monarch money moon moor moose
    morning mosaic moss moth motor mountain mouse mug mulberry mule museum mushroom music mussel
    mustard napkin nebula nectar needle nest net nettle newt nickel night noodle north nose notch
    note novel nugget nut nutmeg oak oar oasis oat oboe ocean octave octopus olive onion onyx opal
    opera orange orbit orchard orchid organ osprey ostrich otter oven owl oyster paddle page pail
    paint palace palm pancake panda pansy panther papaya paper paprika parade parcel park parrot
    parsley pasta pastry patch path patio peach peacock peak peanut pear pearl pebble pecan
    pelican pencil penguin penny peony pepper perch petal pewter piano pickle picnic pier pigeon
    pike pillar pillow pilot pine pipe pistachio pitcher pixel pizza plaid planet plank plate
    plateau plaza plum plume plush pocket poem pollen polo pond pony poodle poplar poppy porch
    port postcard potato potter prairie prawn prism puddle puffin puma pump pumpkin pupil puppet
    puppy purple puzzle pyramid quail quarry quartz queen quiche quill quilt quince rabbit raccoon
    radar radio radish raft rail rain rainbow raisin ranch raven ray reed reef reindeer relish
    ribbon rice riddle ridge ring ripple river road robin robot rock rocket roof room rooster root
    rope rose rowan ruby rudder rug ruler rye saddle saffron sage sail salad salmon salt sand
    sandal sapphire sardine satin sauce saucer scale scarf scarlet school scooter score scroll sea
    seal season seaweed seed sesame shadow shallot shark shed sheep shelf shell shepherd ship
    shirt shoe shore shovel shrew shrimp shrub shuttle silk silo silver siren sketch ski skunk sky
    slate sled sleet slipper sloth snail snow soap sock sofa soil song soup south spade spaniel
    spark sparrow spice spider spinach spiral splash sponge spoon spring sprout spruce square
    squash squid squirrel stable stadium stag stair stamp star starling station statue steam steel
    stem step stilt stone stool stork storm story stove straw stream street string studio sugar
    suit summer summit sun sundial sunset surf swallow swamp swan swing syrup table tablet tailor
    tambourine tango tapir tarragon tart taxi tea teal teapot temple tennis tent terrace theater
    thicket thimble thistle thrush thunder thyme ticket tide tiger tile timber tin toad toast
    toffee tomato topaz torch tower town toy tractor trail train tram tray tree trellis trout
    truffle trumpet trunk tuba tulip tuna tundra tunnel turkey turnip turtle twig twilight ukulele
    umbrella unicorn urchin valley vanilla vase vault veil velvet village vine vinegar viola
    violet violin viper voice volcano vole voyage waffle wagon wall wallaby walnut walrus waltz
    warbler water wave wax weasel weather web wedge west whale wharf wheat wheel whisker whistle
    willow wind window wing winter wolf wombat wood wool wren yacht yak yard yarn yeast yellow yew
    yogurt zebra zenith zephyr zero zinc zinnia zipper
"""

CODE_WORDS: Final = tuple(_TEXT.split())
"""In the order of the alphabet. The order is part of what a code means: never to be changed."""
