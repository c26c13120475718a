"""An order is charged, and the mail about it is pushed, in one commit.

However often this program is killed, no order is charged without its mail.

Prints:

order 1 charged, 1 mail waiting
"""

import qo

with qo.connect("sqlite:///shop.db") as client:
    orders, mail = client.queue("orders"), client.queue("mail")
    orders.push({"order": 1})
    for delivery in orders.claim(10):
        order = delivery.payload["order"]
        thanks = mail.prepare([qo.Message({"thank": order})])
        client.transact([delivery.settlement(qo.Complete())], thanks)
        print(f"order {order} charged, {mail.depth().ready} mail waiting")
