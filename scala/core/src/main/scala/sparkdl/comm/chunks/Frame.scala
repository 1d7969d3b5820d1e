package sparkdl.comm.chunks

import java.nio.ByteBuffer

import io.netty.buffer.{ByteBuf, Unpooled}
import io.netty.channel.{Channel, ChannelFuture}

import org.apache.spark.network.buffer.NioManagedBuffer
import org.apache.spark.network.protocol.{Message, OneWayMessage}

/**
 * Writes messages as Spark's library encodes them, but with their bodies in one piece: one call of the kernel and, of small ones,
 * one packet, where Spark's encoder makes two of each. Called on the channel's own thread.
 */
private[chunks] object Frame {

  /** @param body that of `message`, which is released */
  def write(channel: Channel, message: Message, body: ByteBuf): ChannelFuture = {
    val headBytes = 8 + message.`type`.encodedLength + message.encodedLength
    val head = channel.alloc.directBuffer(headBytes)
    head.writeLong(headBytes + (if (message.isBodyInFrame) body.readableBytes.toLong else 0L))
    message.`type`.encode(head)
    message.encode(head)
    channel.writeAndFlush(Unpooled.wrappedBuffer(head, body))
  }

  /** Writes a one-way message. */
  def write(channel: Channel, message: ByteBuffer): ChannelFuture =
    write(channel, new OneWayMessage(new NioManagedBuffer(message)), Unpooled.wrappedBuffer(message))
}
