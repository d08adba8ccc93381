"""What rallypoint.survive is made of; imports torch."""
