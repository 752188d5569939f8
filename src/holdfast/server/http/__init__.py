"""The web layer: uvicorn, connections, routing, requests, responses. Knows no REST resource."""
