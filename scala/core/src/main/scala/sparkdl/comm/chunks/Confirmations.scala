package sparkdl.comm.chunks

import io.netty.channel.Channel

import sparkdl.comm.Clock

/** Sender of confirmations: reports how much has arrived over `channel`. All calls come from its event loop. */
private[chunks] final class Confirmations(channel: Channel, clock: Clock) {
  private var received = 0L
  private var owed = false

  /** Count `count` more arrivals. One confirmation covers all arrivals before it is sent. */
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
