"""Jobs of a cluster as a schedule of Airflow: every night a backup, its check, and the scrub of a thirtieth.

Copy this file into Airflow's folder of DAGs, and set two of Airflow's variables: `bookies_metadata`, the cluster, and
`bookies_runs`, a directory that every Airflow worker shares, or a URI. The workers need `pip install 'bookies[spark]'`.

The date is in the name of each run, so a retry, or a task that is cleared by hand, goes on where it stopped, and a run
of another day starts over. A task fails with exit status 1 if its report has work for you, and with 2 if it was called
wrongly. Its log shows the report.
"""

from __future__ import annotations

import datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

# By task, in order, without what all tasks share. `bk` reads the cluster from BK_METADATA.
DAY = "{{ dag_run.run_after.strftime('%Y%m%d') }}"
COMMANDS = {
    "backup": "bk spark backup {{ var.value.bookies_runs }}/backups --keep 14 --rate 50",
    "verify": f"bk spark verify {{{{ var.value.bookies_runs }}}}/backups --backup-run {DAY}-backup",
    "scrub": "bk spark scrub --fraction 1/30 --seed {{ dag_run.run_after.toordinal() }} --rate 50",
    "usage": "bk spark usage",
}
SHARED = f"--output {{{{ var.value.bookies_runs }}}}/results --run-id {DAY}-{{{{ task.task_id }}}}"

with DAG(
    "bookies_nightly",
    description="backup, verify, scrub and usage of a BookKeeper cluster",
    schedule="0 2 * * *",
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": datetime.timedelta(minutes=10)},
) as dag:
    before = None
    for name, command in COMMANDS.items():
        task = BashOperator(
            task_id=name,
            bash_command=f"{command} {SHARED}",
            env={"BK_METADATA": "{{ var.value.bookies_metadata }}"},
            append_env=True,
            execution_timeout=datetime.timedelta(hours=6),
        )
        if before is not None:
            before >> task
        before = task
