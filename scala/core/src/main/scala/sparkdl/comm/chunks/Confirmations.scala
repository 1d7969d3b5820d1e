// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.util.ArrayDeque

import scala.jdk.CollectionConverters._

import io.netty.channel.Channel

import sparkdl.comm.{Callbacks, Clock}

/**
 * Sends over one connection, in order, that the peer has not confirmed. Their callbacks are called
 * as by [[Callbacks.callAll]].
 */
private[chunks] final class UnconfirmedSends {
  private val sent = new ArrayDeque[Option[Long] => Unit]
  private var confirmed = 0L
  private var hasEnded = false

  /**
   * Add a send. Call it in the order of the sends.
   *
   * @param done as in [[sparkdl.comm.transport.PeerMessages]]
   * @return false if the connection has ended; then `done` is not called
   */
  def add(done: Option[Long] => Unit): Boolean = synchronized {
    if (!hasEnded) sent.add(done)
    !hasEnded
  }

  /**
   * Confirm the first `total` sends of the connection. Return false if there were not so many, or
   * more were confirmed before.
   *
   * @param time of the confirmation by the peer's clock
   */
  def confirm(total: Long, time: Long): Boolean = {
    val found = synchronized {
      val count = total - confirmed
      if (count < 0 || count > sent.size) None
      else {
        confirmed = total
        Some(Vector.fill(count.toInt)(sent.poll()))
      }
    }
    found.foreach(Callbacks.callAll(_)(done => done(Some(time))))
    found.isDefined
  }

  /** End all sends: the connection is gone. */
  def end(): Unit = {
    val left = synchronized {
      hasEnded = true
      val left = sent.asScala.toVector
      sent.clear()
      left
    }
    Callbacks.callAll(left)(done => done(None))
  }
}

/**
 * Sender of confirmations: reports how much has arrived over `channel`. All calls come from its
 * event loop.
 */
private[chunks] final class ConfirmationSender(channel: Channel, clock: Clock) {
  private var received = 0L
  private var isScheduled = false

  /** Count `count` more arrivals. One confirmation covers all arrivals before it is sent. */
  def recordArrivals(count: Int): Unit = {
    received += count
    if (!isScheduled) {
      channel.eventLoop.execute { () =>
        isScheduled = false
        FrameWriter.write(channel, Wire.received(received, clock.nanoTime))
      }
      isScheduled = true
    }
  }
}
