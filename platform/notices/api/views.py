"""Webhooks over REST. They see the whole tenant, so no key that is bound to a part of it has their scopes."""

from datetime import timedelta
from uuid import UUID

from kernel.rest.pages import PageQuery, page
from kernel.rest.views import ApiView, Context, Created, endpoint
from notices import operations, queries
from notices.api import wire
from notices.operations.endpoints import EndpointDisabled, TooManyEndpoints


class Endpoints(ApiView):
    @endpoint(summary="List webhooks", scope="webhooks:read", query=PageQuery, answer=wire.EndpointPage)
    def get(self, call: Context) -> wire.EndpointPage:
        """In order of creation."""
        shown = page(queries.list_endpoints(tenant=call.tenant), query=call.query, key=lambda row: row.id)
        return wire.EndpointPage(items=[wire.endpoint(row) for row in shown.rows], next_cursor=shown.next_cursor)

    @endpoint(
        summary="Create a webhook",
        scope="webhooks:write",
        body=wire.EndpointIn,
        answer=wire.IssuedEndpointOut,
        status=201,
        secrets=("secret",),
        problems=(TooManyEndpoints,),
    )
    def post(self, call: Context) -> Created:
        """Requests are signed as Standard Webhooks has it; the secret is in this answer and nowhere else."""
        issued = operations.create_endpoint(
            tenant=call.tenant, url=call.body.url, kinds=call.body.kinds, actor=call.actor, now=call.now
        )
        return _issued(issued)


class Endpoint(ApiView):
    @endpoint(summary="Read a webhook", scope="webhooks:read", answer=wire.EndpointOut, conditional=True)
    def get(self, call: Context, endpoint_id: UUID) -> wire.EndpointOut:
        return wire.endpoint(queries.get_endpoint(tenant=call.tenant, endpoint_id=endpoint_id))

    @endpoint(
        summary="Change a webhook",
        scope="webhooks:write",
        body=wire.EndpointPatch,
        answer=wire.EndpointOut,
        conditional=True,
    )
    def patch(self, call: Context, endpoint_id: UUID) -> wire.EndpointOut:
        """If-Match takes the ETag of the webhook."""
        call.require_match(lambda: wire.endpoint(queries.get_endpoint(tenant=call.tenant, endpoint_id=endpoint_id)))
        return wire.endpoint(
            operations.change_endpoint(
                tenant=call.tenant,
                endpoint_id=endpoint_id,
                url=call.body.url,
                kinds=call.body.kinds,
                enabled=call.body.enabled,
                actor=call.actor,
                now=call.now,
            )
        )

    @endpoint(summary="Delete a webhook", scope="webhooks:write", status=204, conditional=True)
    def delete(self, call: Context, endpoint_id: UUID) -> None:
        """Its deliveries go with it."""
        call.require_match(lambda: wire.endpoint(queries.get_endpoint(tenant=call.tenant, endpoint_id=endpoint_id)))
        operations.delete_endpoint(tenant=call.tenant, endpoint_id=endpoint_id, actor=call.actor, now=call.now)


class Rotation(ApiView):
    @endpoint(
        summary="Rotate a webhook's secret",
        scope="webhooks:write",
        body=wire.RotateSecretIn,
        answer=wire.IssuedEndpointOut,
        status=201,
        secrets=("secret",),
    )
    def post(self, call: Context, endpoint_id: UUID) -> Created:
        """For the overlap every request carries both signatures."""
        issued = operations.rotate_secret(
            tenant=call.tenant,
            endpoint_id=endpoint_id,
            overlap=timedelta(seconds=call.body.overlap_seconds),
            actor=call.actor,
            now=call.now,
        )
        return _issued(issued)


class Ping(ApiView):
    @endpoint(
        summary="Test a webhook",
        scope="webhooks:write",
        answer=wire.DeliveryOut,
        status=201,
        problems=(EndpointDisabled,),
    )
    def post(self, call: Context, endpoint_id: UUID) -> wire.DeliveryOut:
        """Sends a notice of the kind `webhook.ping`, whatever kinds it takes."""
        return wire.delivery(operations.ping(tenant=call.tenant, endpoint_id=endpoint_id, now=call.now))


class Deliveries(ApiView):
    @endpoint(
        summary="List a webhook's deliveries", scope="webhooks:read", query=wire.DeliveryQuery, answer=wire.DeliveryPage
    )
    def get(self, call: Context, endpoint_id: UUID) -> wire.DeliveryPage:
        """Newest first. `dead`: given up, and kept to be sent again."""
        found = queries.deliveries(
            tenant=call.tenant,
            endpoint_id=endpoint_id,
            status=call.query.status,
            cursor=call.query.cursor,
            limit=call.query.limit,
        )
        return wire.DeliveryPage(items=[wire.delivery(row) for row in found.rows], next_cursor=found.next_cursor)


class Redelivery(ApiView):
    @endpoint(
        summary="Send a delivery again", scope="webhooks:write", answer=wire.DeliveryOut, problems=(EndpointDisabled,)
    )
    def post(self, call: Context, endpoint_id: UUID, delivery_id: UUID) -> wire.DeliveryOut:
        """Now, under the same `webhook-id`, with all its attempts anew."""
        return wire.delivery(
            operations.redeliver(
                tenant=call.tenant, endpoint_id=endpoint_id, delivery_id=delivery_id, actor=call.actor, now=call.now
            )
        )


class Redeliveries(ApiView):
    @endpoint(
        summary="Send deliveries again",
        scope="webhooks:write",
        body=wire.RedeliverIn,
        answer=wire.RedeliveredOut,
        problems=(EndpointDisabled,),
    )
    def post(self, call: Context, endpoint_id: UUID) -> wire.RedeliveredOut:
        """The oldest first. Repeat it with `next_cursor` until that is null."""
        found = operations.redeliver_since(
            tenant=call.tenant,
            endpoint_id=endpoint_id,
            since=call.body.since,
            delivered=call.body.delivered,
            cursor=call.body.cursor,
            limit=call.body.limit,
            actor=call.actor,
            now=call.now,
        )
        return wire.RedeliveredOut(redelivered=found.count, next_cursor=found.next_cursor)


def _issued(issued: operations.Issued) -> Created:
    answer = wire.IssuedEndpointOut(webhook=wire.endpoint(issued.endpoint), secret=issued.secret)
    return Created(answer, location=f"/api/v1/webhooks/{issued.endpoint.id}")
