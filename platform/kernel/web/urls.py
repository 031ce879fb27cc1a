from django.urls import path

from kernel.web.choose import choose

app_name = "web"
urlpatterns = [path("choose/", choose, name="choose")]
