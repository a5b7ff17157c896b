# Stock price prediction with LSTM
import numpy as np
from keras.layers import LSTM, Dense, Dropout
from keras.models import Sequential

# random walk instead of the csv from yahoo
np.random.seed(7)
prices = 100 + np.cumsum(np.random.randn(520) * 1.3 + 0.05)
prices = prices.reshape(-1, 1)

# feature scaling
mn, mx = prices.min(), prices.max()
scaled = (prices - mn) / (mx - mn)

train_size = int(len(scaled) * 0.67)
train, test = scaled[0:train_size, :], scaled[train_size : len(scaled), :]


def create_dataset(dataset, look_back=1):
    dataX, dataY = [], []
    for i in range(len(dataset) - look_back - 1):
        a = dataset[i : (i + look_back), 0]
        dataX.append(a)
        dataY.append(dataset[i + look_back, 0])
    return np.array(dataX), np.array(dataY)


look_back = 10
trainX, trainY = create_dataset(train, look_back)
testX, testY = create_dataset(test, look_back)

# reshape input to be [samples, time steps, features]
trainX = np.reshape(trainX, (trainX.shape[0], trainX.shape[1], 1))
testX = np.reshape(testX, (testX.shape[0], testX.shape[1], 1))

regressor = Sequential()
regressor.add(LSTM(units=20, return_sequences=True, input_shape=(trainX.shape[1], 1)))
regressor.add(Dropout(0.2))
regressor.add(LSTM(units=20))
regressor.add(Dropout(0.2))
regressor.add(Dense(units=1))
regressor.compile(optimizer="adam", loss="mean_squared_error")
regressor.fit(trainX, trainY, epochs=4, batch_size=16, verbose=2, shuffle=False)

trainPredict = regressor.predict(trainX)
testPredict = regressor.predict(testX)

# invert predictions
trainPredict = trainPredict * (mx - mn) + mn
testPredict = testPredict * (mx - mn) + mn
trainY = trainY * (mx - mn) + mn
testY = testY * (mx - mn) + mn

trainScore = np.sqrt(np.mean((trainY - trainPredict[:, 0]) ** 2))
print("Train Score: %.8f RMSE" % trainScore)
testScore = np.sqrt(np.mean((testY - testPredict[:, 0]) ** 2))
print("Test Score: %.8f RMSE" % testScore)
np.save("test_predict.npy", testPredict)
