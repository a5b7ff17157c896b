"""Command line that starts an elastic job (`python -m hvd_elastic_keras.run --help`).

    python -m hvd_elastic_keras.run --model=resnet50
    python -m hvd_elastic_keras.run --model=path/to/my_model.py --num_workers=4 --epochs=10
    python -m hvd_elastic_keras.run --model=resnet50 --job=evaluate --checkpoint=JOB_DIR
    python -m hvd_elastic_keras.run --num_workers=4 script.py --script_flag=1

The last form runs a script that trains by itself, with `Model.fit`, `Trainer` or
`hvd_elastic_keras.elastic`.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

from hvd_elastic_keras._version import __version__
from hvd_elastic_keras.cli import (
    command_line,
    dry_run,
    job_directory,
    job_request,
    leave_notices,
    run_job,
    script_warnings,
    source_files,
    take_over,
)
from hvd_elastic_keras.cli.flags import (
    find_model,
    host_flags,
    inference_flags,
    job_flags,
    join_flags,
    kubernetes_flags,
    settings,
)
from hvd_elastic_keras.cli.flags.arguments import split_arguments, with_own_names
from hvd_elastic_keras.cli.join import join_job
from hvd_elastic_keras.common import control, tf_config
from hvd_elastic_keras.common.errors import ConfigurationError, ElasticError
from hvd_elastic_keras.observe import output
from hvd_elastic_keras.settings import env, launched_by
from hvd_elastic_keras.settings.job_spec import TRAIN, JobSpec
from hvd_elastic_keras.settings.options import RunOptions
from hvd_elastic_keras.settings.training_config import check_batch_may_grow, check_seed

# `--help` shows only the flags of this module, so it adopts the others.
flags.adopt_module_key_flags(job_flags)
flags.adopt_module_key_flags(inference_flags)
flags.adopt_module_key_flags(join_flags)
flags.adopt_module_key_flags(host_flags)
flags.adopt_module_key_flags(kubernetes_flags)
flags.adopt_module_key_flags(leave_notices)
_SEED = job_flags.TRAINING_FLAGS["seed"]
_OF_MODELS = (
    *(name for name in job_flags.TRAINING_FLAGS if name != _SEED.name),
    job_flags.MODEL.name,
    job_flags.INIT_FROM.name,
)
"""Flags whose values a script decides by itself."""


def _job_dir(name: str) -> Path:
    if job_flags.JOB_DIR.value:
        try:
            str(Path(job_flags.JOB_DIR.value).resolve()).encode()
        except UnicodeEncodeError:
            raise ConfigurationError(
                f"--job_dir={job_flags.JOB_DIR.value!r} was given, expected a path in UTF-8: it is "
                "written to files and sent to workers. Rename the directory, or check LANG."
            ) from None
        return Path(job_flags.JOB_DIR.value).resolve()
    return job_directory.of_name(name)


def _start(given: settings.Settings, arguments: Sequence[str]) -> int:
    script = list(arguments[1:])
    if job_flags.MODULE.value:
        if not script:
            raise ConfigurationError(
                "--module was given without the name of a module. Write -m package.train, with "
                "the module's own arguments after it."
            )
        script.insert(0, source_files.AS_MODULE)
    env.refuse_other_backend()
    other = launched_by.other_launcher()
    if other is not None:
        if other.rank:
            time.sleep(launched_by.FIRST_SPEAKS_S)
            print(
                f"error: this is rank {other.rank} of {other.size} of {other.name}, whose rank 0 "
                "says what is wrong. If there is no other launcher, unset its variables in this "
                "shell.",
                file=sys.stderr,
            )
            return 2
        raise ConfigurationError(other.refusal(" ".join(script)).rstrip())
    leave_notices.begin()
    by_tf_config = join_flags.JOIN.value == tf_config.VARIABLE
    if by_tf_config:
        join_flags.take_place_of_tf_config(job_flags.JOB_DIR.value)
    if join_flags.JOIN.value is not None:
        if job_flags.DRY_RUN.value:
            raise ConfigurationError(
                "--dry_run was given together with --join: the master has the plan. Give it to the "
                "command that starts the job."
            )
        if not by_tf_config:
            _refuse_what_the_master_decides(script)
        return join_job.join_job(_wish())
    join_flags.refuse_without_join()
    if job_flags.RESUME.value:
        before = Path(job_flags.JOB_DIR.value) if job_flags.JOB_DIR.value else None
        take_over.start_again(before, given)
    if job_flags.DRY_RUN.value:
        request = _request(script, given)
        model = find_model.short_name(request.spec.model) if request.spec else request.name
        counts = inference_flags.values_that_count(_reference())
        reference = given.lines(counts, f"configuration of {model}")
        return asyncio.run(dry_run.dry_run(request, list(reference)))
    command = take_over.what_was_asked_for(given.words)
    return asyncio.run(run_job.run_job(_request(script, given, command)))


def _refuse_what_the_master_decides(script: list[str]) -> None:
    if script:
        raise ConfigurationError(
            f"{source_files.name_of(script)} was given together with --join: the master says what "
            "is trained. Leave it out."
        )
    join_flags.refuse_others()


def _wish() -> join_job.JoinWish:
    """Returns the settings of a joiner, from flags."""
    token = join_flags.TOKEN_FILE.value
    return join_job.JoinWish(
        where=join_flags.JOIN.value,
        token=join_flags.read_token(token) if token else "",
        host_name=join_flags.HOST_NAME.value or "",
        worker_id=join_flags.WORKER_ID.value,
        job_dir=job_flags.JOB_DIR.value,
        network_interface=job_flags.NETWORK_INTERFACE.value,
        read_by_launcher=bool(join_flags.WORKER_ID.value) and token == "-",
        join_timeout_s=join_flags.JOIN_TIMEOUT_S.value,
        leave_exit_code=join_flags.LEAVE_EXIT_CODE.value,
    )


def _request(
    script: list[str], given: settings.Settings, words: tuple[str, ...] = ()
) -> job_request.JobRequest:
    """Returns the job that the flags ask for: a script with arguments or, if empty, a model."""
    config = _reference()
    # A script decides itself what it trains; a reference configuration does not concern it.
    asked = job_flags.given_options({} if script else config, given.sources)
    job, bind, hosts = job_flags.job_config(), join_flags.BIND.value, host_flags.hosts_request()
    if hosts:
        job = hosts.job_config(job)
        bind = bind if join_flags.BIND.present else hosts.bind()
    if pods := kubernetes_flags.pods_request():
        job = pods.job_config(job)
        bind = bind if join_flags.BIND.present else pods.bind()
    if script:
        _check_script(script)
        check_seed(_SEED.value or 0)
        by_name = source_files.is_module(script)
        spec, name = None, find_model.short_name(script[1]) if by_name else Path(script[0]).stem
        job_dir = _job_dir(name)
    else:
        inference_flags.check()
        name = inference_flags.default_name(job_flags.MODEL.value)
        job_dir = _job_dir(name)
        spec = _spec(config, asked.with_script(), job_dir)
        if hosts and spec.trains:
            host_flags.check_batch_is_given(spec.training, config)
    timeline = job_flags.TIMELINE.value
    return job_request.JobRequest(
        job,
        spec,
        script,
        job_dir,
        name,
        asked=asked,
        command=job_request.CommandLine(
            words, given.sources, warnings=_warnings(given.words, script)
        ),
        network_interface=job_flags.NETWORK_INTERFACE.value,
        output=job_request.OutputRequest(
            timeline=Path(timeline).resolve() if timeline else None,
            dashboard=job_flags.DASHBOARD.value,
            report=job_flags.REPORT.value,
            all_output=job_flags.ALL_OUTPUT.value or job_flags.VERBOSE.value,
            verbosity=job_flags.verbosity(),
        ),
        master=job_request.MasterRequest(
            bind,
            join_flags.PORT.value,
            pods.master_host if pods else "",
            tls=job_flags.TLS.value,
            token=join_flags.token_of_job(join_flags.TOKEN_FILE.value),
        ),
        hosts=hosts,
        pods=pods,
        seed=_SEED.value if script else None,
    )


def _warnings(words: list[str], script: list[str]) -> tuple[str, ...]:
    """Returns warnings about a command line and its script, to show before the job starts."""
    if not script:
        return ()
    typed = split_arguments(words)[1]
    as_module = bool(job_flags.MODULE.value)
    texts = (
        script_warnings.warning_of_flags(typed, _is_for_script, as_module=as_module),
        *script_warnings.warnings_of_files(script, Path.cwd()),
    )
    return tuple(text for text in texts if text)


def _is_for_script(name: str) -> bool:
    """Returns whether `run` takes a flag of this name, or its negation, together with a script."""
    of_models = {*_OF_MODELS, *(f.name for f in (*inference_flags.ALL, job_flags.DATA_DIR))}
    positive = settings.flag_of(name)
    # Many scripts have a flag --seed of their own.
    others = {*of_models, settings.CONFIG, _SEED.name}
    return positive in settings.known_flags() and positive not in others


def _reference() -> dict[str, Any]:
    """Returns the model's reference configuration, with single values replaced."""
    return job_flags.CONFIG.value.to_dict() if job_flags.CONFIG.value is not None else {}


def _spec(config: dict[str, Any], options: RunOptions, job_dir: Path) -> JobSpec:
    if inference_flags.JOB.value != TRAIN:
        return inference_flags.spec(config, job_dir)
    training = job_flags.training_config(config)
    if training.batch_grows:
        check_batch_may_grow(options)
    start = job_flags.INIT_FROM.value
    return JobSpec(
        training,
        job_flags.MODEL.value,
        job_flags.DATA_DIR.value,
        # Absolute, because workers may run elsewhere.
        init_from=str(Path(start).resolve()) if start else "",
        config=config,
    )


def _check_script(script: list[str]) -> None:
    """Raises `ConfigurationError` if there is no such script, or if a flag is not for scripts."""
    given = [f"--{name}" for name in _OF_MODELS if flags.FLAGS[name].present]
    path = source_files.name_of(script)
    exists = source_files.file_of(script, Path.cwd()).is_file()
    if not exists and flags.FLAGS["model"].present:
        raise ConfigurationError(
            f"{path} was given, expected flags only together with --model. Leave it out."
        )
    if given:
        raise ConfigurationError(
            f"{', '.join(given)} was given together with the script {path}, which decides these "
            "by itself (the arguments of fit, or TrainingConfig). Give them to the script, or use "
            "--model."
        )
    if not exists:
        raise ConfigurationError(
            f"There is no script {path}. To train a model, use --model={path}."
        )
    inference_flags.refuse_with_script(path)
    source_files.check_script(script, Path.cwd())


def _main(given: settings.Settings, arguments: Sequence[str]) -> int:
    try:
        return _start(given, arguments)
    except ElasticError as error:
        print(f"error: {error}", file=sys.stderr)
        if join_flags.JOIN.value is None:
            return 2
        return control.HOPELESS if isinstance(error, ConfigurationError) else control.FAILED
    except KeyboardInterrupt:
        return _interrupted()
    except asyncio.CancelledError:
        print("got SIGTERM before any worker was started", file=sys.stderr)
        return 128 + signal.SIGTERM


def _interrupted() -> int:
    print("interrupted before any worker was started", file=sys.stderr)
    return 128 + signal.SIGINT


def _answer_about_itself(words: Sequence[str]) -> None:
    """Answers a command line that only asks about this program, and ends it."""
    if not words and not settings.from_environment():
        print(f"{command_line.USAGE}\nMore: --help", file=sys.stderr)
        sys.exit(2)
    typed, _ = split_arguments(words)
    asked = {name: value for name, value, _ in typed}
    if "version" in asked:
        print(f"hvd_elastic_keras {__version__}")
    elif asked.get("help") == command_line.ALL:
        app.usage(shorthelp=True, writeto_stdout=True)
    elif "help" in asked:
        print(command_line.first_screen(sys.modules[__name__]))
    else:
        return
    sys.exit(0)


def main() -> None:
    """Parses the command line and runs the job to its end, even if nobody can read the output."""
    output.open_closed_streams()
    with output.best_effort():
        try:
            _run()
        except KeyboardInterrupt:
            sys.exit(_interrupted())


def _run() -> None:
    sys.path.insert(0, "")
    flags.FLAGS.set_gnu_getopt(False)
    try:
        words = flags.FLAGS.read_flags_from_files(sys.argv[1:], force_gnu=False)
        words = with_own_names(words)
        _answer_about_itself(words)
        given = settings.resolved(words, take_over.sources_handed_on())
        sys.argv = find_model.with_config_path([sys.argv[0], *given.words])
    except (ElasticError, flags.Error) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    app.run(functools.partial(_main, given), flags_parser=settings.parse_flags)


if __name__ == "__main__":
    main()
