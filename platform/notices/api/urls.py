from django.urls import path

from notices.api import views

urlpatterns = [
    path("webhooks", views.Endpoints.as_view()),
    path("webhooks/<uuid:endpoint_id>", views.Endpoint.as_view()),
    path("webhooks/<uuid:endpoint_id>/rotate", views.Rotation.as_view()),
    path("webhooks/<uuid:endpoint_id>/ping", views.Ping.as_view()),
    path("webhooks/<uuid:endpoint_id>/deliveries", views.Deliveries.as_view()),
    path("webhooks/<uuid:endpoint_id>/deliveries/<uuid:delivery_id>/redeliver", views.Redelivery.as_view()),
    path("webhooks/<uuid:endpoint_id>/redeliver", views.Redeliveries.as_view()),
]
