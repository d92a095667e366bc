"""The seventeen further classification tasks of Houlsby et al. 2019, one entry each.

Their folder is `extra`. Most come from CrowdFlower's Data For Everyone library, as one CSV file without parts. The
paper split each at random, 80/10/10. `rows` is the source's number of rows. Rows with a label in `drop` are stored but
not loaded; the loaded rows have the paper's number. `paper` is None if the paper's sizes were not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.tasks.suites.mending import ENCODINGS
from intarsia.tasks.suites.suite import FileLayout, Format, Hub, Suite, SuiteTask

CROWDFLOWER = "https://data.world/crowdflower"
NEWSGROUPS = (
    "alt.atheism", "comp.graphics", "comp.os.ms-windows.misc", "comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware",
    "comp.windows.x", "misc.forsale", "rec.autos", "rec.motorcycles", "rec.sport.baseball", "rec.sport.hockey",
    "sci.crypt", "sci.electronics", "sci.med", "sci.space", "soc.religion.christian", "talk.politics.guns",
    "talk.politics.mideast", "talk.politics.misc", "talk.religion.misc",
)  # fmt: skip
EMOTIONS = (
    "anger", "boredom", "empty", "enthusiasm", "fun", "happiness", "hate", "love", "neutral", "relief", "sadness",
    "surprise", "worry",
)  # fmt: skip
PLUTCHIK = (
    "Aggression", "Ambiguous", "Anger", "Anticipation", "Awe", "Contempt", "Disapproval", "Disgust", "Fear", "Joy",
    "Love", "Neutral", "Optimism", "Remorse", "Sadness", "Submission", "Surprise", "Trust",
)  # fmt: skip
MESSAGES = (
    "attack", "constituency", "information", "media", "mobilization", "other", "personal", "policy", "support",
)  # fmt: skip
STANCE = (
    "q1_from_reading_the_tweet_which_of_the_options_below_is_most_likely_to_be_true_about_the_stance_or_outlook_of_the_"
    "tweeter_towards_the_target"
)
OPINION = "q2_which_of_the_options_below_is_true_about_the_opinion_in_the_tweet"
WARMING = {"Yes": "yes", "Y": "yes", "No": "no", "N": "no", "NA": None, "N/A": None, "": None}


def _task(
    name: str,
    title: str,
    files: tuple[str, ...],
    rows: int | None,
    columns: Mapping[str, str],
    labels: tuple[str, ...],
    *,
    format: Format = "csv",
    header: tuple[str, ...] | None = None,
    encodings: tuple[str, ...] = ENCODINGS,
    mend: bool = True,
    source: str = CROWDFLOWER,
    **more: Any,
) -> SuiteTask:
    layout = FileLayout(format, {"all": files}, columns, {"all": header} if header else {}, encodings)
    return SuiteTask(
        suite="extra", name=name, title=title, kind="label", metrics=("accuracy",), rows={"all": rows}, labels=labels,
        layout=layout, source=source, mend=mend, **more,
    )  # fmt: skip


def _judged(label: str, text: str = "text", **more: str) -> dict[str, str]:
    """The columns of a CrowdFlower file, including the confidence of the label."""
    return {"id": "_unit_id", "text": text, "label": label, "confidence": f"{label}:confidence", **more}


def _political(name: str, column: str, labels: tuple[str, ...]) -> SuiteTask:
    return _task(
        name, f"Political social media posts: {column}", ("Political-media-DFE.csv", "political_social_media.csv"),
        5000, _judged(column, source="source"), labels, paper=(4000, 500, 500),
    )  # fmt: skip


def _progressive(name: str, title: str, column: str, values: Mapping[str, str]) -> SuiteTask:
    return _task(
        name, title, ("progressive-tweet-sentiment.csv",), 1159, _judged(column, "tweet", target="target"),
        tuple(values.values()), values=values, paper=(927, 116, 116),
    )  # fmt: skip


TASKS = (
    SuiteTask(
        suite="extra",
        name="20_newsgroups",
        title="20 Newsgroups, by date",
        kind="label",
        metrics=("accuracy",),
        rows={"train": 11314, "test": 7532},
        labels=NEWSGROUPS,
        pooled=True,
        layout=FileLayout(
            "folders", {"train": ("20news-bydate-train",), "test": ("20news-bydate-test",)}, encodings=("latin-1",)
        ),
        source="http://qwone.com/~jason/20Newsgroups/ (20news-bydate.tar.gz)",
        paper=(15076, 1885, 1885),
    ),
    _task(
        "airline", "Sentiment about US airlines", ("Airline-Sentiment-2-w-AA.csv", "Tweets.csv"), 14640,
        _judged("airline_sentiment"), ("negative", "neutral", "positive"), paper=(11712, 1464, 1464),
    ),
    _task(
        "corporate_messaging", "What companies' posts are for", ("Corporate-messaging-DFE.csv",), 3118,
        _judged("category", screenname="screenname"), ("Action", "Dialogue", "Exclude", "Information"),
        paper=(2494, 312, 312),
    ),
    _task(
        "disasters", "Whether a tweet is about a disaster", ("socialmedia-disaster-tweets-DFE.csv",), 10876,
        _judged("choose_one"), ("Not Relevant", "Relevant"), drop=("Can't Decide",), paper=(8688, 1086, 1086),
    ),
    _task(
        "economic_news_relevance", "Whether an article is about the US economy",
        ("Full-Economic-News-DFE-839861.csv",), 8000, _judged("relevance", headline="headline"), ("no", "yes"),
        drop=("not sure",), note="The paper's sizes were not checked.",
    ),
    _task(
        "emotion", "Emotion in a tweet", ("text_emotion.csv",), 40000,
        {"id": "tweet_id", "text": "content", "label": "sentiment"}, EMOTIONS, paper=(32000, 4000, 4000),
    ),
    _task(
        "global_warming", "Whether a tweet says that global warming is real", ("1377884570_tweet_global_warming.csv",),
        6090, {"text": "tweet", "label": "existence", "label_raw": "existence"}, ("no", "yes"), values=WARMING,
        drop=(None,), paper=(3380, 422, 423),
    ),
    _political("political_audience", "audience", ("constituency", "national")),
    _political("political_bias", "bias", ("neutral", "partisan")),
    _political("political_message", "message", MESSAGES),
    _task(
        "primary_emotions", "Emotion of a sentence, by Plutchik's wheel", ("primary-plutchik-wheel-DFE.csv",), 2524,
        _judged("emotion", "sentence"), PLUTCHIK, paper=(2019, 252, 253),
    ),
    _progressive(
        "progressive_opinion", "What a tweet has an opinion on", OPINION,
        {
            "1.*": "explicit_opinion_on_target",
            "2.*": "opinion_on_something_else",
            "3.*": "no_opinion",
        },
    ),
    _progressive(
        "progressive_stance", "For or against a progressive issue", STANCE,
        {"AGAINST:*": "AGAINST", "FOR:*": "FOR", "NEUTRAL:*": "NEUTRAL", "NONE OF THE ABOVE:*": "NONE"},
    ),
    _task(
        "us_economic_performance", "Whether an article is about the US economy's state", ("us-economic-newspaper.csv",),
        5015, _judged("relevance", headline="headline"), ("no", "yes"), drop=("not sure",),
        note="The paper has 4,952 rows in total. They are probably those with relevance yes or no; not checked.",
    ),
    _task(
        "customer_complaints", "What a complaint to the US consumer bureau is about",
        ("Consumer_Complaints.csv", "complaints.csv"), None,
        {"id": "Complaint ID", "text": "Consumer complaint narrative", "label": "Issue"}, (), empty="skipped",
        mend=False, encodings=("utf-8-sig",), source="https://www.consumerfinance.gov/data-research/consumer-complaints/",
        note="The database grows daily, and the paper does not say which day's copy it used: any copy counts as a "
        "sample. The label (the issue) and the sizes were not checked.",
    ),
    _task(
        "news_aggregator", "Topic of a headline", ("newsCorpora.csv",), 422937,
        {"id": "ID", "text": "TITLE", "label": "CATEGORY", "publisher": "PUBLISHER"},
        ("business", "science_technology", "entertainment", "health"), format="tsv", mend=False,
        header=("ID", "TITLE", "URL", "PUBLISHER", "CATEGORY", "STORY", "HOSTNAME", "TIMESTAMP"),
        encodings=("utf-8-sig",),
        values={"b": "business", "t": "science_technology", "e": "entertainment", "m": "health"},
        source="https://archive.ics.uci.edu/dataset/359/news+aggregator", paper=(338349, 42294, 42294),
        note="Read without quoting; with quoting the file has 422,419 rows.",
    ),
    _task(
        "sms_spam", "Spam among text messages", ("SMSSpamCollection", "SMSSpamCollection.txt"), 5574,
        {"label": "label", "text": "text"}, ("ham", "spam"), format="tsv", header=("label", "text"), mend=False,
        encodings=("utf-8-sig",),
        hub=Hub("ucirvine/sms_spam", None, {"text": "sms", "label": "label"}, {"all": "train"}),
        source="https://archive.ics.uci.edu/dataset/228/sms+spam+collection", paper=(4459, 557, 557),
    ),
)  # fmt: skip

FURTHER = Suite(
    "extra",
    "Seventeen further classification tasks",
    # Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP, supplementary material
    TASKS,
)
