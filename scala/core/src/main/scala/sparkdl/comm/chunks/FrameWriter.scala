// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.nio.ByteBuffer

import io.netty.buffer.{ByteBuf, Unpooled}
import io.netty.channel.{Channel, ChannelFuture}

import org.apache.spark.internal.Logging
import org.apache.spark.network.buffer.NioManagedBuffer
import org.apache.spark.network.protocol.{Message, OneWayMessage}

/**
 * Writer of messages in the encoding of Spark's library, but with head and body in one piece. That
 * takes one system call, and one packet for small messages, where Spark's encoder takes two. Call
 * it on the channel's event loop. It never throws. If a message cannot be written, the connection
 * is closed, which fails everything that waits for it here and at the peer.
 */
private[chunks] object FrameWriter extends Logging {

  /**
   * Write a message with its body in one piece.
   *
   * @param body that of `message`; it is released
   */
  def write(channel: Channel, message: Message, body: ByteBuf): ChannelFuture =
    closing(channel)(send(channel, message, body))

  /**
   * Write a one-way message.
   *
   * @param message it is made here, so that the connection is closed if it cannot be made
   */
  def write(channel: Channel, message: => ByteBuffer): ChannelFuture = closing(channel) {
    val made = message
    send(channel, new OneWayMessage(new NioManagedBuffer(made)), Unpooled.wrappedBuffer(made))
  }

  /**
   * Write a message with Spark's encoder.
   *
   * @param message it is made here, so that the connection is closed if it cannot be made
   */
  def encodeAndWrite(channel: Channel, message: => Message): ChannelFuture =
    closing(channel)(channel.writeAndFlush(message))

  private def send(channel: Channel, message: Message, body: ByteBuf): ChannelFuture = {
    val frame =
      try Unpooled.wrappedBuffer(head(channel, message, body), body)
      catch {
        case e: Throwable =>
          body.release()
          throw e
      }
    channel.writeAndFlush(frame)
  }

  private def head(channel: Channel, message: Message, body: ByteBuf): ByteBuf = {
    val bytes = 8 + message.`type`.encodedLength + message.encodedLength
    val head = channel.alloc.directBuffer(bytes)
    head.writeLong(bytes + (if (message.isBodyInFrame) body.readableBytes.toLong else 0L))
    message.`type`.encode(head)
    message.encode(head)
    head
  }

  private def closing(channel: Channel)(write: => ChannelFuture): ChannelFuture = {
    val written =
      try write
      catch { case e: Throwable => channel.newFailedFuture(e) }
    written.addListener { (future: io.netty.util.concurrent.Future[Void]) =>
      if (!future.isSuccess && channel.isOpen) {
        logError(
          s"The connection to ${channel.remoteAddress} is closed: a message could not be written",
          future.cause
        )
        channel.close()
      }
    }
  }
}
