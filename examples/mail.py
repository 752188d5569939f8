"""Welcome mails over SMTP: every address gets one, also if the mail server is down for a while.

Shows once-only keys, retries with a backoff, and a dead letter for an address that is refused.

    python mail.py ada@example.org bob@example.org     # enqueue; again: nothing new
    holdfast worker run mail.py:app                    # send

SMTP_SERVER names the mail server, by default localhost:1025.
"""

import os
import smtplib
import sys
from email.message import EmailMessage

from holdfast import Bury, Context, Holdfast

app = Holdfast()

HOST, _, PORT = os.environ.get("SMTP_SERVER", "localhost:1025").partition(":")
REFUSED = 500
"""Answers of a mail server from this number on are final; those below it are for now."""


@app.task(queue="mail", max_attempts=8, backoff="exponential(2s, max=1h)", timeout="1m")
def welcome(ctx: Context, to: str) -> str:
    """Send a mail and return its id."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "shop@example.org", to, "Welcome"
    # Every attempt has the same id. If a worker dies between sending and reporting, the mail is
    # sent again, and whoever gets both can tell that they are the same.
    mail["Message-ID"] = f"<{ctx.id}@example.org>"
    mail.set_content(f"Welcome, {to}!")
    try:
        with smtplib.SMTP(HOST, int(PORT or 25), timeout=30) as server:
            server.send_message(mail)
    except smtplib.SMTPRecipientsRefused as refused:
        code, text = refused.recipients[to]
        if code >= REFUSED:
            raise Bury(f"{to} is refused: {code} {text.decode()}") from None
        raise
    return str(mail["Message-ID"])


if __name__ == "__main__":
    for address in sys.argv[1:]:
        # The key makes the job once-only: a second one within 30 days is a duplicate.
        job = welcome.using(key=f"welcome/{address}", key_window="30d").enqueue(address)
        print(address, "was enqueued before" if job.duplicate else f"is enqueued as {job.id}")
