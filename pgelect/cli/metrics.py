"""``pgelect metrics``: print the alert rules and the dashboard that come with the library. Needs no server."""

import typer

from pgelect.cli.ending import told
from pgelect.cli.output import say
from pgelect.metrics import alert_rules, dashboard

metrics = typer.Typer(
    help="Print alert rules for Prometheus, or a dashboard for Grafana.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@metrics.command()
def alerts() -> None:
    """Print the alert rules: a file for rule_files of Prometheus.

    \b
    Example:
      pgelect metrics alerts > /etc/prometheus/pgelect-alerts.yml
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    with told("metrics alerts"):
        say(alert_rules().rstrip("\n"))


@metrics.command("dashboard")
def board() -> None:
    """Print the dashboard: JSON for Grafana to import.

    \b
    Example:
      pgelect metrics dashboard > pgelect-dashboard.json
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    with told("metrics dashboard"):
        say(dashboard().rstrip("\n"))
