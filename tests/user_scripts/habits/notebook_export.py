#!/usr/bin/env python
# coding: utf-8

# # Overfitting and underfitting
#
# Homework 3, exported from the notebook.

# In[1]:


import numpy as np
from tensorflow import keras
from tensorflow.keras import layers, regularizers


# In[2]:


np.random.seed(1)
NUM_WORDS = 120
topics = np.random.dirichlet(np.ones(NUM_WORDS) * 0.15, size=6)


def make(n):
    y = np.random.randint(0, 6, n)
    x = np.array([np.random.multinomial(np.random.randint(5, 14), 0.5 * topics[k] + 0.5 / NUM_WORDS) for k in y])
    return (x > 0).astype("float32"), y


(train_data, train_labels), (test_data, test_labels) = make(700), make(200)


# In[3]:


train_data.shape, train_labels[:10]


# In[4]:


def build(units=16, l2=0.0, dropout=0.0):
    model = keras.Sequential()
    model.add(layers.Dense(units, activation="relu", kernel_regularizer=regularizers.l2(l2)))
    model.add(layers.Dropout(dropout))
    model.add(layers.Dense(6, activation="softmax"))
    model.compile(optimizer="rmsprop", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


x_val, partial_x_train = train_data[:150], train_data[150:]
y_val, partial_y_train = train_labels[:150], train_labels[150:]


# In[7]:


model = build(32)
history = model.fit(partial_x_train, partial_y_train, epochs=6, batch_size=64, validation_data=(x_val, y_val), verbose=0)


# In[8]:


loss = history.history["loss"]
val_loss = history.history["val_loss"]
for epoch, (a, b) in enumerate(zip(loss, val_loss), 1):
    print(epoch, a, b, "*" * int(20 * b))


# In[9]:


small = build(4)
small_history = small.fit(partial_x_train, partial_y_train, epochs=6, batch_size=64, validation_data=(x_val, y_val), verbose=0)
reg = build(32, l2=0.002, dropout=0.5)
reg_history = reg.fit(partial_x_train, partial_y_train, epochs=6, batch_size=64, validation_data=(x_val, y_val), verbose=0)
print("small", small_history.history["val_loss"])
print("reg", reg_history.history["val_loss"])


# In[12]:


# best number of epochs, train again on all of the data
best = int(np.argmin(history.history["val_loss"])) + 1
model = build(32)
model.fit(train_data, train_labels, epochs=best, batch_size=64)
# the cell was run twice
model.fit(train_data, train_labels, epochs=1, batch_size=64)
results = model.evaluate(test_data, test_labels)
results


# In[13]:


print(results)


# In[14]:


predictions = model.predict(test_data)
predictions[0].shape, np.sum(predictions[0])
print(predictions[0], np.argmax(predictions[0]), test_labels[0])


# In[ ]:



