"""Word lists the generated tasks draw their keys and names from."""

# ruff: noqa: SIM905  (a word list reads better as text)

ADJECTIVES = tuple(
    """able amber ancient angry autumn bitter black blue bold brave bright broad broken bronze brown busy calm careful
    cheap cheerful chief civil clean clear clever cloudy cold common cool copper crimson cruel curious daily dark dead
    dear deep distant double dry dull dusty eager early eastern easy electric empty equal evil exact faint fair faithful
    false famous fast fatal fierce fine firm first flat foolish foreign formal former free fresh friendly frozen full
    gentle giant glad golden good grand grave gray great green grim happy hard harsh heavy hidden high hollow holy
    honest hot huge humble hungry idle inner iron jolly keen kind large late lazy lesser light little lively local
    lonely long lost loud lovely low lucky lunar mad marble merry mighty mild modern moral narrow native natural
    near neat new noble northern odd old open orange outer pale patient perfect pink plain pleasant polite poor pretty
    prime private proud public pure purple quick quiet rapid rare raw ready red regular rich ripe rough round royal
    rude rural rusty sacred sad safe scarlet secret severe shallow sharp short silent silver simple single sleepy slow
    small smooth social soft solar solid southern spare special square steady steep stern stiff strange strict strong
    sudden summer sweet swift tall tame tender thick thin tiny tired total tough true upper urban useful usual vague
    vast velvet violent violet vital warm weak weary western white whole wicked wide wild winter wise wooden yellow
    young""".split()
)
NOUNS = tuple(
    """acre actor anchor angel animal apple apron arch arm army arrow artist aunt autumn baby bank barn basket battle
    beach bear bell bench bird blade board boat body bone book bottle bowl box boy branch bread bridge brother brush
    bucket camel camp candle captain card castle cat cellar chain chair chapel chest child church city clerk clock
    cloud coach coast coat coffee coin colony cook corn cottage cotton court cousin cow crown cup curtain dance
    daughter desert desk dinner doctor dog door dragon dress drum duck duke eagle ear earth edge egg engine eye face
    falcon family farm farmer father feather fence field finger fire fish flag flame floor flower foot forest fork
    friend frog fruit game garden gate ghost giant girl glass goat grain grass guard guest gun hall hammer hand harbor
    harp hat hawk heart hill horn horse hotel house hunter island jacket jewel judge jury key king kitchen knife lady
    lake lamb lamp lane leaf leg lemon letter lily lion lock machine maid map market master meadow metal milk mill
    mirror monkey moon mother mountain mouse mouth nation neck needle nephew night noise nose nurse oak ocean office
    officer oil orange oven owl ox page palace paper park parrot path pearl pen pencil piano picture pig pillow pilot
    pine pipe planet plant plate poet pond pony pool priest prince prison queen rabbit rain raven ribbon rifle ring
    river road robin roof room root rope rose sailor salt sand scholar school sea servant shadow sheep shell ship shirt
    shoe shop sister sky smoke snake snow soldier son song soup spider spoon spring stable stage star station stone
    storm stranger stream street student sugar summer sun sword table tailor teacher temple thief thread throne tiger
    tooth tower town trade train tree trumpet tunnel turtle uncle valley vessel village violin voice wagon wall watch
    water wave wheel whistle widow wife wind window wine wing winter wolf woman wood wool writer yard""".split()
)
NAMES = tuple(
    """Ada Adam Agnes Albert Alice Amos Amy Andrew Anna Arthur Ben Bertha Blanche Carl Caroline Catherine Charles Clara
    Daniel David Dora Edith Edward Eleanor Eliza Emily Emma Ernest Esther Eva Fanny Felix Flora Frances Frank Fred
    George Grace Hannah Harold Harriet Harry Helen Henry Hugh Ida Isaac Isabel Jack Jacob James Jane Jenny Jim Joan John
    Joseph Josephine Julia Kate Laura Leo Lewis Lily Louis Louise Lucy Luke Mabel Margaret Maria Mark Martha Martin
    Mary Matthew Max Michael Molly Nancy Nathan Nell Nora Oliver Oscar Otto Owen Patrick Paul Peter Philip Rachel Ralph
    Rebecca Richard Robert Roger Rosa Ruth Sally Sam Sarah Simon Sophia Stephen Susan Thomas Tom Victor Walter
    William""".split()
)
CITIES = tuple(
    """Amsterdam Antwerp Athens Baltimore Barcelona Belfast Berlin Boston Brussels Budapest Buffalo Cairo Calcutta
    Chicago Cleveland Cologne Copenhagen Dallas Delhi Denver Dover Dresden Dublin Edinburgh Florence Frankfurt Geneva
    Glasgow Granada Hamburg Havana Houston Istanbul Jerusalem Kiev Lagos Leeds Leipzig Lima Lisbon Liverpool London
    Lyons Madrid Manchester Marseilles Melbourne Memphis Mexico Milan Montreal Moscow Mumbai Munich Naples Oslo Oxford
    Paris Phoenix Pittsburgh Plymouth Prague Quebec Richmond Rome Rotterdam Santiago Seattle Seville Shanghai Stockholm
    Sydney Tokyo Toronto Trieste Turin Venice Vienna Warsaw Washington York Zurich""".split()
)
