package sparkdl.comm.chunks

import io.netty.channel.Channel

import sparkdl.comm.Clock

/** Sender of confirmations: reports how much has arrived over `channel`. All calls come from its event loop. */
private[chunks] final class ConfirmationSender(channel: Channel, clock: Clock) {
  private var received = 0L
  private var isScheduled = false

  /** Count `count` more arrivals. One confirmation covers all arrivals before it is sent. */
  def recordArrivals(count: Int): Unit = {
    received += count
    if (!isScheduled) {
      isScheduled = true
      channel.eventLoop.execute { () =>
        isScheduled = false
        FrameWriter.write(channel, Wire.received(received, clock.nanoTime))
      }
    }
  }
}
