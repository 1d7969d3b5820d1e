package sparkdl.comm.chunks

import java.nio.ByteBuffer

import io.netty.buffer.{ByteBuf, Unpooled}
import io.netty.channel.{Channel, ChannelFuture}
import org.slf4j.LoggerFactory

import org.apache.spark.network.buffer.NioManagedBuffer
import org.apache.spark.network.protocol.{Message, OneWayMessage}

/**
 * Writes messages as Spark's library encodes them, but with their bodies in one piece: one call of the kernel and, of small ones,
 * one packet, where Spark's encoder makes two of each. Called on the channel's own thread. It never throws: the connection of a
 * message that cannot be written is closed, which fails all that waits for it, here and at the peer.
 */
private[chunks] object Frame {
  private val log = LoggerFactory.getLogger(getClass)

  /** @param body that of `message`, which is released */
  def write(channel: Channel, message: Message, body: ByteBuf): ChannelFuture = closing(channel) {
    val frame =
      try Unpooled.wrappedBuffer(head(channel, message, body), body)
      catch {
        case e: Throwable =>
          body.release()
          throw e
      }
    channel.writeAndFlush(frame)
  }

  /** Writes a one-way message. */
  def write(channel: Channel, message: ByteBuffer): ChannelFuture =
    write(channel, new OneWayMessage(new NioManagedBuffer(message)), Unpooled.wrappedBuffer(message))

  /** Writes a message as Spark's encoder makes it. */
  def write(channel: Channel, message: Message): ChannelFuture = closing(channel)(channel.writeAndFlush(message))

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
        log.error(s"The connection to ${channel.remoteAddress} is closed: a message could not be written", future.cause)
        channel.close()
      }
    }
  }
}
