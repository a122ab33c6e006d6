"""`darkroom up`: runs nats-server, Ray, Serve and HAProxy on one machine."""
