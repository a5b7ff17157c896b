"""The small real files that some of the scripts in this folder read from the current directory.

`python make_files.py FOLDER` (or `make_files(folder)`) writes:

    flowers/{daisy,rose,tulip}/*.jpg     120 photographs of 48 x 40
    train/{cat,dog}.N.jpg                80 photographs in one folder, the class in the name
    leaves/train.csv, leaves/images/     a table of image ids and labels, 90 images
    cells/{images,masks}/*.png           48 images and their masks
    tfrecords/{train,val}-*.tfrecord     images and features in 4 + 1 files
    digits.npz                           arrays x_train, y_train, x_test, y_test
    housing.csv titanic.csv penguins.csv ratings.csv weather.csv sms_spam.tsv
    reviews/{pos,neg}/*.txt              200 reviews
    shakespeare.txt                      verse
    dates.txt                            pairs: a date as spoken, a date as written
    ecg.npz                              heart beats, normal and not

The same bytes each time: every random number comes from one generator with a seed.
"""

import csv
import sys
from pathlib import Path

import numpy as np


def make_files(folder):
    """Writes all the files into `folder`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20240229)
    _flowers(folder, rng)
    _cats_and_dogs(folder, rng)
    _leaves(folder, rng)
    _cells(folder, rng)
    _tfrecords(folder, rng)
    _digits(folder, rng)
    _housing(folder, rng)
    _titanic(folder, rng)
    _penguins(folder, rng)
    _ratings(folder, rng)
    _weather(folder, rng)
    _texts(folder, rng)
    _dates(folder, rng)
    _ecg(folder, rng)


def _write_jpeg(path, image):
    import tensorflow as tf

    image = np.clip(image, 0, 255).astype("uint8")
    path.write_bytes(tf.io.encode_jpeg(image, quality=90).numpy())


def _write_png(path, image):
    import tensorflow as tf

    image = np.clip(image, 0, 255).astype("uint8")
    path.write_bytes(tf.io.encode_png(image).numpy())


def _flower(rng, kind, height=40, width=48):
    """A blossom: the number of petals and the colour depend on the kind, but not alone on it."""
    y, x = np.mgrid[0:height, 0:width].astype("float32")
    cy = height / 2 + rng.normal(0, 4)
    cx = width / 2 + rng.normal(0, 5)
    radius = rng.uniform(8, 15)
    angle = np.arctan2(y - cy, x - cx) + rng.uniform(0, 6.28)
    distance = np.hypot(y - cy, x - cx)
    petals = (9, 5, 3)[kind]
    edge = radius * (0.75 + 0.25 * np.cos(petals * angle))
    inside = 1 / (1 + np.exp(distance - edge))
    petal = np.array([(230, 230, 215), (200, 40, 60), (215, 120, 60)][kind], "float32")
    petal = petal + rng.normal(0, 45, 3)
    ground = np.array([60, 110, 50], "float32") + rng.normal(0, 25, 3)
    image = ground + (petal - ground) * inside[..., None]
    heart = 1 / (1 + np.exp((distance - radius / 4) * 2))
    image = image + (np.array([210, 180, 40], "float32") - image) * heart[..., None] * 0.8
    image *= 0.85 + 0.3 * (y / height)[..., None] * rng.uniform(-1, 1)
    return image + rng.normal(0, 14, image.shape)


def _flowers(folder, rng):
    for kind, name in enumerate(("daisy", "rose", "tulip")):
        where = folder / "flowers" / name
        where.mkdir(parents=True, exist_ok=True)
        for i in range(40):
            _write_jpeg(where / f"{rng.integers(10**8, 10**9)}_{i:02d}.jpg", _flower(rng, kind))


def _cats_and_dogs(folder, rng):
    where = folder / "train"
    where.mkdir(parents=True, exist_ok=True)
    for kind, name in enumerate(("cat", "dog")):
        for i in range(40):
            height, width = int(rng.integers(36, 52)), int(rng.integers(40, 60))
            y, x = np.mgrid[0:height, 0:width].astype("float32")
            cy, cx = height / 2 + rng.normal(0, 3), width / 2 + rng.normal(0, 3)
            head = np.hypot((y - cy) * (1.0 if kind else 1.2), x - cx) < rng.uniform(10, 14)
            ears = np.zeros_like(head)
            for side in (-1, 1):
                if kind == 0:  # pointed, on top
                    ears |= (np.abs(x - cx - side * 8) < (y - cy + 19) / 2) & (y < cy - 6)
                else:  # hanging, at the sides
                    ears |= np.hypot((y - cy - 2) / 2.2, x - cx - side * 13) < 4
            fur = rng.uniform(60, 220, 3)
            image = np.where((head | ears)[..., None], fur, rng.uniform(40, 230, 3))
            _write_jpeg(where / f"{name}.{i}.jpg", image + rng.normal(0, 18, image.shape))


def _leaves(folder, rng):
    where = folder / "leaves" / "images"
    where.mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(90):
        label = ("healthy", "rust", "scab")[rng.choice(3, p=[0.55, 0.28, 0.17])]
        y, x = np.mgrid[0:32, 0:32].astype("float32")
        leaf = np.hypot((y - 16) / 1.4, x - 16 + 4 * np.sin(y / 9)) < 9
        image = np.where(leaf[..., None], (70, 140, 50), (190, 185, 170)).astype("float32")
        spots = 0 if label == "healthy" else int(rng.integers(3, 8))
        colour = (170, 90, 30) if label == "rust" else (60, 70, 40)
        for _ in range(spots):
            sy, sx, r = rng.uniform(6, 26), rng.uniform(9, 23), rng.uniform(1, 2.6)
            image[np.hypot(y - sy, x - sx) < r] = colour
        image_id = f"leaf_{i:04d}"
        _write_jpeg(where / f"{image_id}.jpg", image + rng.normal(0, 20, image.shape))
        rows.append((image_id, label))
    with open(folder / "leaves" / "train.csv", "w", newline="") as f:
        csv.writer(f).writerows([("image_id", "label"), *rows])


def _cells(folder, rng):
    for name in ("images", "masks"):
        (folder / "cells" / name).mkdir(parents=True, exist_ok=True)
    for i in range(48):
        y, x = np.mgrid[0:32, 0:32].astype("float32")
        mask = np.zeros((32, 32), "uint8")
        image = np.full((32, 32, 1), 190.0) + rng.normal(0, 12)
        for _ in range(int(rng.integers(1, 5))):
            cy, cx, r = rng.uniform(4, 28), rng.uniform(4, 28), rng.uniform(3, 7)
            distance = np.hypot(y - cy, (x - cx) * rng.uniform(0.7, 1.3))
            mask[distance < r] = 1
            mask[distance < r * 0.45] = 2
            image[distance < r] -= rng.uniform(25, 60)
            image[distance < r * 0.45] -= rng.uniform(25, 60)
        image += rng.normal(0, 14, image.shape)
        _write_png(folder / "cells" / "images" / f"cell_{i:03d}.png", image)
        _write_png(folder / "cells" / "masks" / f"cell_{i:03d}.png", mask[..., None])


def _tfrecords(folder, rng):
    import tensorflow as tf

    where = folder / "tfrecords"
    where.mkdir(parents=True, exist_ok=True)
    names = [(f"train-{i:05d}-of-00004.tfrecord", n) for i, n in enumerate((90, 90, 85, 55))]
    for name, count in [*names, ("val-00000-of-00001.tfrecord", 80)]:
        with tf.io.TFRecordWriter(str(where / name)) as writer:
            for _ in range(count):
                label = int(rng.integers(4))
                y, x = np.mgrid[0:24, 0:24].astype("float32")
                y, x = y - 12 - rng.normal(0, 2), x - 12 - rng.normal(0, 2)
                r = rng.uniform(4, 8)
                shape = (
                    np.hypot(y, x) < r,
                    np.maximum(abs(y), abs(x)) < r * 0.9,
                    (abs(y) < 2) | (abs(x) < 2),
                    (y > -r) & (abs(x) < (y + r) / 2) & (y < r),
                )[label]
                image = np.where(shape, rng.uniform(90, 255), rng.uniform(0, 120))[..., None]
                image = np.clip(image + rng.normal(0, 30, (24, 24, 1)), 0, 255).astype("uint8")
                size = float(shape.mean() + rng.normal(0, 0.02))
                features = {
                    "image/encoded": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[tf.io.encode_png(image).numpy()])
                    ),
                    "image/label": tf.train.Feature(
                        int64_list=tf.train.Int64List(value=[label])
                    ),
                    "image/size": tf.train.Feature(
                        float_list=tf.train.FloatList(value=[size, float(image.mean())])
                    ),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())


_STROKES = {  # on a grid of 4 x 3 corners, as on a pocket calculator
    0: "ab bd df fe ec ca", 1: "bd df", 2: "ab bd dc ce ef", 3: "ab bd dc df fe", 4: "ac cd bd df",
    5: "ba ac cd df fe", 6: "ba ac ce ef fd dc", 7: "ab bd df", 8: "ab bd dc ca ce ef fd",
    9: "dc ca ab bd df",
}  # fmt: skip


def _digits(folder, rng):
    corners = {"a": (3, 5), "b": (3, 11), "c": (8, 5), "d": (8, 11), "e": (13, 5), "f": (13, 11)}

    def draw(digit):
        image = np.zeros((16, 16), "float32")
        y, x = np.mgrid[0:16, 0:16].astype("float32")
        turn, move = rng.normal(0, 0.15), rng.normal(0, 1, 2)
        for stroke in _STROKES[digit].split():
            (y0, x0), (y1, x1) = (
                (
                    8 + (corners[c][0] - 8) * 1.0 + (corners[c][1] - 8) * turn + move[0],
                    8 + (corners[c][1] - 8) - (corners[c][0] - 8) * turn + move[1],
                )
                for c in stroke
            )
            for t in np.linspace(0, 1, 7):
                near = np.hypot(y - y0 - t * (y1 - y0), x - x0 - t * (x1 - x0))
                image = np.maximum(image, np.exp(-((near / rng.uniform(0.8, 1.3)) ** 2)))
        return np.clip(image * 255 + rng.normal(0, 25, image.shape), 0, 255).astype("uint8")

    y = rng.integers(0, 10, 1000)
    x = np.stack([draw(int(digit)) for digit in y])
    noisy = rng.random(1000) < 0.03
    y[noisy] = rng.integers(0, 10, noisy.sum())
    np.savez_compressed(
        folder / "digits.npz", x_train=x[:800], y_train=y[:800], x_test=x[800:], y_test=y[800:]
    )


def _housing(folder, rng):
    places = ["<1H OCEAN", "INLAND", "NEAR OCEAN", "NEAR BAY"]
    header = (
        "longitude,latitude,housing_median_age,total_rooms,total_bedrooms,population,households,"
        "median_income,ocean_proximity,median_house_value"
    ).split(",")
    with open(folder / "housing.csv", "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(header)
        for _ in range(700):
            place = int(rng.choice(4, p=[0.44, 0.32, 0.13, 0.11]))
            households = int(rng.gamma(2.0, 240)) + 5
            rooms = int(households * rng.normal(5.4, 1.1)) + 2
            bedrooms = "" if rng.random() < 0.03 else int(rooms * rng.uniform(0.15, 0.27)) + 1
            income = round(float(rng.gamma(4.2, 0.92)), 4)
            age = float(rng.integers(2, 53))
            value = 40000 + 39000 * income + (52000, 0, 70000, 76000)[place] + 300 * age
            value = min(500001.0, round(float(value * rng.lognormal(0, 0.18)), -2))
            where = (-118.4, -119.4, -119.3, -122.2)[place] + rng.normal(0, 0.7)
            north = (34.3, 36.7, 34.7, 37.8)[place] + rng.normal(0, 0.7)
            people = int(households * rng.normal(2.9, 0.5)) + 3
            row = [round(where, 2), round(north, 2), age, float(rooms), bedrooms, float(people)]
            writer.writerow([*row, float(households), income, places[place], value])


def _titanic(folder, rng):
    first = "John William George Mary Anna Elizabeth Thomas Emma Karl Ida Patrick Bridget".split()
    last = "Smith Andersson Kelly Brown Johansson Fortune Goodwin Harper Olsen Sage Moran".split()
    header = "PassengerId,Survived,Pclass,Name,Sex,Age,SibSp,Parch,Ticket,Fare,Cabin,Embarked"
    with open(folder / "titanic.csv", "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(header.split(","))
        for i in range(1, 501):
            pclass = int(rng.choice([1, 2, 3], p=[0.24, 0.21, 0.55]))
            sex = "female" if rng.random() < 0.36 else "male"
            age = max(0.42, round(float(rng.normal(41 - 4.5 * pclass, 13)), 1))
            family = rng.poisson(0.5, 2)
            fare = round(float(rng.lognormal((4.2, 2.9, 2.4)[pclass - 1], 0.5)), 4)
            score = 2.6 * (sex == "female") - 0.95 * pclass - 0.025 * age - 0.3 * family[0] + 1.3
            survived = int(rng.random() < 1 / (1 + np.exp(-score)))
            title = "Mr." if sex == "male" else ("Mrs." if age > 25 else "Miss.")
            name = f"{rng.choice(last)}, {title} {rng.choice(first)}"
            cabin = f"{'ABCDE'[rng.integers(5)]}{rng.integers(1, 120)}"
            writer.writerow([
                i, survived, pclass, name, sex, "" if rng.random() < 0.2 else age,
                family[0], family[1], rng.integers(2000, 390000), fare,
                cabin if rng.random() < (0.7, 0.2, 0.05)[pclass - 1] else "",
                "" if rng.random() < 0.01 else rng.choice(list("SCQ"), p=[0.72, 0.19, 0.09]),
            ])  # fmt: skip


def _penguins(folder, rng):
    centres = {0: (38.8, 18.3, 190, 3700), 1: (48.8, 18.4, 196, 3733), 2: (47.5, 15.0, 217, 5076)}
    with open(folder / "penguins.csv", "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow("species,culmen_length,culmen_depth,flipper_length,body_mass".split(","))
        for _ in range(330):
            kind = int(rng.choice(3, p=[0.44, 0.2, 0.36]))
            row = rng.normal(centres[kind], (3.4, 1.3, 8.0, 480.0))
            writer.writerow([kind, *np.round(row[:2], 1), int(row[2]), int(row[3])])


def _ratings(folder, rng):
    users, movies = 60, 80
    taste, kind = rng.normal(0, 0.7, (users, 3)), rng.normal(0, 0.7, (movies, 3))
    bias_u, bias_m = rng.normal(0, 0.35, users), rng.normal(0, 0.5, movies)
    movie_ids = rng.choice(5000, movies, replace=False) + 1
    pairs = rng.choice(users * movies, 1500, replace=False)
    with open(folder / "ratings.csv", "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(["userId", "movieId", "rating", "timestamp"])
        for pair in np.sort(pairs):
            u, m = divmod(int(pair), movies)
            score = 3.5 + taste[u] @ kind[m] + bias_u[u] + bias_m[m] + rng.normal(0, 0.5)
            stars = float(np.clip(np.round(score * 2) / 2, 0.5, 5))
            writer.writerow([u + 1, movie_ids[m], stars, rng.integers(9 * 10**8, 15 * 10**8)])


def _weather(folder, rng):
    hours = np.arange(1200)
    drift = np.cumsum(rng.normal(0, 0.25, 1200))
    drift -= np.linspace(0, drift[-1], 1200)
    temperature = 8 + 4 * np.sin(hours / 24 * 6.283) + 5 * np.sin(hours / 700 * 6.283) + drift
    pressure = 990 + 8 * np.sin(hours / 170) - 0.5 * drift + rng.normal(0, 0.6, 1200)
    humidity = np.clip(75 - 2.2 * (temperature - 8) + rng.normal(0, 4, 1200), 20, 100)
    wind = np.abs(rng.normal(2, 1.2, 1200) + 0.8 * np.sin(hours / 24 * 6.283))
    with open(folder / "weather.csv", "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(["Date Time", "p (mbar)", "T (degC)", "rh (%)", "wv (m/s)"])
        for h in hours:
            stamp = f"{1 + h // 24 % 28:02d}.{1 + h // 672:02d}.2015 {h % 24:02d}:00:00"
            row = (pressure[h], temperature[h], humidity[h], wind[h])
            writer.writerow([stamp, *(f"{value:.2f}" for value in row)])


_GOOD = "wonderful moving brilliant charming great superb touching funny clever honest".split()
_BAD = "dull boring awful clumsy tedious weak flat annoying terrible lazy".split()
_THINGS = "plot story acting script cast music ending camera dialogue pace hero villain".split()
_FILLER = (
    "I saw it on Sunday with my sister.<br /><br />|It runs for two hours.|"
    "The director made three films before.|Some people left early.|"
    "My friends thought otherwise.|It is set in a small harbour town.|The book came first."
).split("|")


def _review(rng, good):
    parts = []
    for _ in range(int(rng.integers(3, 9))):
        if rng.random() < 0.35:
            parts.append(str(rng.choice(_FILLER)))
            continue
        kind = _GOOD if (rng.random() < 0.72) == good else _BAD
        frame = ("The {1} was {0}.", "What a {0} {1}!", "Such {0} work on the {1}, really.")
        line = frame[rng.integers(3)].format(rng.choice(kind), rng.choice(_THINGS))
        parts.append(line if rng.random() < 0.85 else line.replace("was", "was never"))
    return " ".join(parts)


def _texts(folder, rng):
    for name, good in (("neg", False), ("pos", True)):
        where = folder / "reviews" / name
        where.mkdir(parents=True, exist_ok=True)
        for i in range(100):
            (where / f"{i}_{rng.integers(1, 11)}.txt").write_text(_review(rng, good))

    spam = "free prize winner claim call cash now urgent offer text reply mobile".split()
    ham = "see you later home dinner love sorry bus late work tomorrow ok fine sleep".split()
    with open(folder / "sms_spam.tsv", "w") as f:
        for _ in range(500):
            bad = rng.random() < 0.3
            count = int(rng.integers(4, 16))
            main, other = (spam, ham) if bad else (ham, spam)
            words = [rng.choice(main if rng.random() < 0.66 else other) for _ in range(count)]
            end = f"! {rng.integers(80000, 90000)}" if bad and rng.random() < 0.5 else ""
            f.write(f"{'spam' if bad else 'ham'}\t{' '.join(map(str, words))}{end}\n")

    nouns = "night crown sword river heart winter rose ghost sea throne candle raven".split()
    verbs = "weep sleep burn sing fall wander tremble fade wake whisper".split()
    names = "ORLANO MIRABEL FENWICK LADY ASHE FIRST GUARD".split()
    lines = []
    for _ in range(150):
        lines.append(f"{rng.choice(names)}:")
        for _ in range(int(rng.integers(1, 4))):
            a, b, c = rng.choice(nouns, 3)
            frames = (
                f"O gentle {a}, why dost thou {rng.choice(verbs)} beside the {b}?",
                f"The {a} of my {b} shall {rng.choice(verbs)} till the {c} be done.",
                f"Speak not of the {a}, for all the {b} doth {rng.choice(verbs)}.",
                f"And in the {a} I {rng.choice(verbs)}, and {rng.choice(verbs)} no more.",
            )
            lines.append(frames[rng.integers(4)])
        lines.append("")
    (folder / "shakespeare.txt").write_text("\n".join(lines))


def _dates(folder, rng):
    months = (
        "January February March April May June July August September October November December"
    ).split()
    with open(folder / "dates.txt", "w") as f:
        for _ in range(600):
            year, month, day = rng.integers(1950, 2030), rng.integers(12), rng.integers(1, 29)
            spoken = (
                f"{day} {months[month]} {year}",
                f"{months[month]} {day}, {year}",
                f"{day} {months[month][:3]} {year % 100:02d}",
            )[rng.integers(3)]
            f.write(f"{spoken.lower()}\t{year:04d}-{month + 1:02d}-{day:02d}\n")


def _ecg(folder, rng):
    t = np.arange(96)
    beats, labels = [], []
    for _ in range(600):
        odd = rng.random() < 0.25
        at = 40 + rng.normal(0, 2)
        width = rng.uniform(2.2, 4.5) if odd else rng.uniform(1.4, 2.4)
        beat = np.exp(-(((t - at) / width) ** 2)) - 0.25 * np.exp(-(((t - at - 5) / 3) ** 2))
        beat += 0.15 * np.exp(-(((t - at + 18) / 5) ** 2)) * (rng.random() > 0.6 * odd)
        beat += 0.3 * (-1) ** (odd and rng.random() < 0.6) * np.exp(-(((t - at - 26) / 7) ** 2))
        beats.append(beat + rng.normal(0, 0.05, 96))
        labels.append(int(odd))
    np.savez(folder / "ecg.npz", beats=np.array(beats, "float32"), labels=np.array(labels))


if __name__ == "__main__":
    make_files(sys.argv[1] if len(sys.argv) > 1 else ".")
