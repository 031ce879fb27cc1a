// Starts Swagger UI on the API's own document. A key entered there stays in this page's memory.
const place = document.getElementById("swagger-ui");

SwaggerUIBundle({
  url: place.dataset.document,
  domNode: place,
  deepLinking: true,
  persistAuthorization: false,
  validatorUrl: null,
});
