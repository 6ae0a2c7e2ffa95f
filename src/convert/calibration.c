/* calibration.c: the texts that `convert --target-bpw` measures on when none are named (REG-208): a little of what models are asked to
 * read and write, so that no module is judged by one kind of text alone. Written for this program. Changing a byte changes every plan
 * that is made with it. */
#include "convert/convert.h"

static const char text[] =
    "The ferry left the island a little after six, when the harbour was still grey and the gulls had not yet decided where to quarrel. "
    "Marta stood at the rail with a paper cup of coffee that had gone cold before she remembered it. Behind her two men argued in low "
    "voices about the price of diesel, and a child counted the waves aloud, starting again from one whenever the boat rolled. She had "
    "crossed this water perhaps four hundred times, and she still looked for the lighthouse first, as her father had taught her: find the "
    "thing that does not move, he used to say, and then you may worry about the rest.\n\n"

    "Question: Why does bread rise in the oven even though the yeast dies there?\n"
    "Answer: Most of the gas is made earlier, while the dough rests. In the oven three things happen at once. The gas that is already in the "
    "bubbles expands as it warms, water turns to steam and pushes too, and for a few minutes the yeast works faster than before, until about "
    "sixty degrees end its work. By then the starch has begun to set, so the loaf keeps its shape.\n\n"

    "def running_mean(values, width):\n"
    "    \"\"\"Mean of the last `width` values at each place; shorter at the beginning.\"\"\"\n"
    "    total, out = 0.0, []\n"
    "    for i, value in enumerate(values):\n"
    "        total += value\n"
    "        if i >= width:\n"
    "            total -= values[i - width]\n"
    "        out.append(total / min(i + 1, width))\n"
    "    return out\n\n"

    "A train covers 168 kilometres in 1 hour and 45 minutes. What is its mean speed? First write the time in hours: 45 minutes are 0.75 of "
    "an hour, so it takes 1.75 hours. Then divide: 168 / 1.75 = 96. The mean speed is 96 kilometres an hour. To check, 96 times 1.75 is "
    "96 + 72 = 168, which is the distance that was given.\n\n"

    "{\"order\": 20417, \"customer\": {\"name\": \"R. Okafor\", \"city\": \"Leeds\"}, \"items\": [{\"sku\": \"LMP-3\", \"count\": 2, \"price\": 18.5}, "
    "{\"sku\": \"CBL-9\", \"count\": 1, \"price\": 4.25}], \"paid\": true, \"note\": null}\n\n"

    "Minutes of the meeting, Tuesday. Present: Anna, Joel, Priya. 1. The roof: two offers have come, the third is late; Joel telephones again "
    "on Thursday. 2. The budget: Priya showed that heating cost eleven per cent more than planned, nearly all of it in February. It was "
    "agreed to wait for the new meter before anything is changed. 3. Next meeting: the fourteenth, same room, bring the keys.\n\n"

    "Der Bus kam wieder zu spät, aber niemand beschwerte sich, denn es schneite, und alle waren froh, dass er überhaupt fuhr. Une vieille "
    "dame offrit des pommes à ses voisins; personne n'osa refuser. El conductor cantaba en voz baja una canción que nadie conocía.\n\n"

    "User: My plant has yellow leaves. I water it every day. What am I doing wrong?\n"
    "Assistant: Probably too much of a good thing. Roots that stand in water get no air, and yellow leaves are often the first sign. Let the "
    "top two centimetres of the soil dry before you water again, and make sure that the pot has a hole. If new leaves are pale with "
    "green veins, it may be short of iron instead.\n"
    "User: How often is that, in practice?\n"
    "Assistant: For most house plants once a week in summer and every two or three weeks in winter. Your finger in the soil is a better "
    "judge than the calendar.\n\n"

    "In a closed system the energy stays the same, but its usefulness does not. A cup of tea and the room around it have, together, as much "
    "energy after an hour as before; yet no one has seen a lukewarm cup draw the warmth back out of the air. There are simply far more ways "
    "for the molecules to share that energy than for a few of them to keep it, and what can happen in more ways is what we see. The law "
    "is thus one of large numbers: strict for a cup, only probable for a handful of atoms.\n\n"

    "# Install\n\n"
    "1. Download the archive for your system and check its sum.\n"
    "2. Unpack it: `tar -xf tool-2.1.tar.gz && cd tool-2.1`\n"
    "3. Run `./configure --prefix=$HOME/.local`, then `make` and `make install`.\n"
    "4. Add `~/.local/bin` to your PATH. If `tool --version` prints 2.1, you are done; if the shell does not find it, open a new one.\n\n"

    "SELECT c.city, COUNT(*) AS orders, SUM(o.total) AS revenue FROM orders o JOIN customers c ON c.id = o.customer_id WHERE o.placed_at >= "
    "'2023-01-01' GROUP BY c.city HAVING COUNT(*) > 10 ORDER BY revenue DESC LIMIT 5;\n\n"

    "Once a fox asked an owl how it was that she always knew where the mice were. \"I listen,\" said the owl. \"So do I,\" said the fox, \"and I "
    "have the larger ears.\" \"You have,\" said the owl, \"but you listen for what you want, and I listen for what is there.\" The fox thought "
    "about this all the way home, and that night, for the first time, he heard the snow.\n\n"

    "Dear Mr Haddad, thank you for your letter of 3 May. We are sorry that the second parcel arrived damaged. A replacement was sent this "
    "morning and should reach you by Friday; you need not return the broken glasses. As a small apology we have taken the delivery charge "
    "off your account. Please let us know if anything else is missing. Yours sincerely, E. Lindqvist, Customer Service\n\n"

    "The council voted seven to four on Monday evening to keep the old library open until the end of next year, while engineers study whether "
    "the north wall can be saved. Supporters filled the gallery and cheered; the treasurer warned that the repair fund covers barely half "
    "of the cost. A final decision is expected in the autumn, after the survey has been published and the public has had six weeks to "
    "comment on it.\n";

const char *convert_calibration_text(size_t *len)
{
    *len = sizeof text - 1;
    return text;
}
