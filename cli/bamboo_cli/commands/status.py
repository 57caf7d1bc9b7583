"""`bamboo status`: a job now, or until it ends."""

from __future__ import annotations

from pathlib import Path

import click

from bamboo_cli.views.terminal.console import make_console

_DAY_S = 86400.0


@click.command()
@click.argument("job")
@click.option("-n", "--namespace", help="Namespace of the job.  [default: the context's]")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="[default: $KUBECONFIG]")
@click.option("--context", help="Context in the kubeconfig.  [default: the current one]")
@click.option("-w", "--watch", is_flag=True, help="Refresh until the job ends.")
def status(
    job: str, namespace: str | None, kubeconfig: Path | None, context: str | None, watch: bool
) -> None:
    """Show a BambooJob: progress, grid, zones, conditions, checkpoint."""
    from bamboo_cli.cluster.kube import Kube
    from bamboo_cli.cluster.watch import follow, look
    from bamboo_cli.views.terminal.job_screen import checkpoint_line, conditions, job_screen
    from bamboo_cli.views.terminal.live_display import make_display

    console = make_console()
    kube = Kube(kubeconfig, context)
    where = namespace or kube.namespace
    if watch:
        with make_display(console) as display:
            for snapshot in follow(kube, where, job, timeout_s=_DAY_S):
                display.show(snapshot)
    else:
        snapshot = look(kube, where, job)
    console.print(job_screen(snapshot))
    console.print(conditions(snapshot.job))
    console.print(checkpoint_line(snapshot.job))
