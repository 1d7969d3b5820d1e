package sparkdl.comm.chunks

import io.netty.channel.Channel

import sparkdl.comm.Clock

/** Tells the peer how much has come over `channel`. All calls come from the one thread that serves it. */
private[chunks] final class Confirmations(channel: Channel, clock: Clock) {
  private var received = 0L
  private var owed = false

  /** So many more have come. The peer is told once of all that have come by then. */
  def came(count: Int): Unit = {
    received += count
    if (!owed) {
      owed = true
      channel.eventLoop.execute { () =>
        owed = false
        Frame.write(channel, Wire.received(received, clock.nanoTime))
      }
    }
  }
}
